"""Warnings about oddities in valid events, each logged once a process."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import structlog

from streamd.decode.rounding import EXACT, NOTHING, Rounded
from streamd.decode.wire import unknown_fields
from streamd.events import Int64
from streamd.telemetry import metrics

logger = structlog.get_logger()
DAY_NS = 86_400_000_000_000
UNITS_NS = {"days": DAY_NS, "s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
NEAR = 0.1
"""Share of the wall clock's time by which a time may miss it and still look like that unit: about
five and a half years. Times of a stream that counts from 0 are rarely in that range."""
MAX_NAMES = 8
MAX_NAME = 40
"""Most names of fields in a text, and most characters of each."""


def named(names: Sequence[str]) -> str:
    """List names of fields in a text, at most MAX_NAMES; unprintable characters are escaped."""
    # Producers choose these names: an unprintable one could spoil a terminal that shows the log.
    shown = [n if n.isprintable() else ascii(n)[1:-1] for n in names[:MAX_NAMES]]
    some = ", ".join(n[:MAX_NAME] for n in shown)
    return some + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")


def other_unit(time_us: int, now_us: int, unit: str) -> str | None:
    """The other unit in which a time of the stream's unit would be near the wall clock, if any."""
    for name, ns in UNITS_NS.items():
        if name != unit and abs(time_us * ns / UNITS_NS[unit] - now_us) < NEAR * now_us:
            return name
    return None


class Notices:
    """Logs a warning about each kind of oddity once. Owner: the decoder.

    all_rounded: the rounded values of all valid events so far. watches_fields: whether unknown
    fields are still looked for.
    """

    def __init__(self, time_unit: str, unit_setting: str = "stream.time_unit") -> None:
        """unit_setting: the setting that says the unit, empty where none does."""
        self._unit = time_unit
        self._setting = unit_setting
        self._warned: set[str] = set()
        self._has_times = False
        self.all_rounded = NOTHING
        self.watches_fields = True

    def unknown_fields(self, items: Iterable[bytes | msgspec.Raw]) -> None:
        """Warn that some valid events have fields that nothing reads, and look for no others.

        items: the events' bytes.
        """
        self.watches_fields = False
        names = unknown_fields(items)
        if names:
            self._warn_once("unknown_fields", fields=named(names), meaning="nothing reads them")

    def no_time(self) -> None:
        """Warn that valid events have no time of their own."""
        self._warn_once(
            "time_missing", meaning="such events get the timestamp of their Kafka record"
        )

    def truncate(self, topic: str) -> None:
        """Warn that a table whose changes are in a topic was truncated."""
        self._warn_once(
            "table_truncated",
            topic=topic,
            meaning="truncated: edges before it stay, since no record names its rows",
            action="delete their nodes or edges, or begin a new data_dir, if they must go",
        )

    def rounded(self, found: Rounded) -> None:
        """Count rounded values of valid events, and warn of them."""
        if found.num:
            self.all_rounded += found
            self._warn_once(
                "feature_rounded",
                example=found.example,
                meaning=f"features are float32, which rounds whole numbers above {EXACT:,}",
            )

    def unit(self, unit: str) -> None:
        """Warn that a time looks like one in another unit."""
        self._warn_once(
            "time_unit_suspicious",
            looks_like=unit,
            stream_time_unit=self._unit,
            action=f"send {self._unit}, or set {self._setting} before the first event",
        )

    def times(self, time_us: Int64, now_us: int) -> None:
        """Warn where times of valid events look like another unit.

        None is far ahead of the clock, so only a coarser unit is possible.
        """
        if "time_unit_suspicious" in self._warned or not len(time_us) or not self._setting:
            return
        is_first, self._has_times = not self._has_times, True
        if time_us.min() * (1 - NEAR) * 1000 > now_us:
            return  # no coarser unit fits the earliest time
        # A time in a coarser unit is smaller than the clock by the ratio of the units.
        for name, ns in UNITS_NS.items():
            scale = ns // UNITS_NS[self._unit]
            if scale <= 1:
                continue
            is_near = np.abs(time_us - now_us / scale) < NEAR * now_us / scale
            # Seconds that count from 0 pass through the numbers of days, so all of the first count.
            if is_near.any() if name != "days" else is_first and is_near.all():
                self.unit(name)
                return

    def _warn_once(self, kind: str, **fields: str) -> None:
        """Log a kind of oddity, the first time only."""
        if kind not in self._warned:
            self._warned.add(kind)
            metrics.odd_events.labels(kind).set(1)
            logger.warning(kind, **fields)

"""Warns about oddities in valid events; each kind is logged once a process."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import structlog

from streamd.decode.block import SECONDS_UNTIL
from streamd.decode.rounding import EXACT, NOTHING, Rounded
from streamd.decode.time_units import NEAR, UNITS_NS, UnitCheck, change_unit
from streamd.decode.wire import unknown_fields
from streamd.events import Int64
from streamd.telemetry import metrics

logger = structlog.get_logger()
MAX_NAMES = 8
MAX_NAME = 40
"""Maximum names of fields in a text, and maximum characters of each."""


def named(names: Sequence[str]) -> str:
    """Join names of fields for a text, at most MAX_NAMES; unprintable characters are escaped."""
    # Producers choose these names: an unprintable one could spoil a terminal that shows the log.
    shown = [n if n.isprintable() else ascii(n)[1:-1] for n in names[:MAX_NAMES]]
    some = ", ".join(n[:MAX_NAME] for n in shown)
    return some + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")


class Notices:
    """Logs a warning about each kind of oddity once. Owner: the decoder.

    all_rounded: the rounded values of all valid events so far. watches_fields: whether unknown
    fields are still to be reported. units: checks whether all times look like another unit.
    """

    def __init__(self, time_unit: str, unit_setting: str = "stream.time_unit") -> None:
        """unit_setting: the setting of the unit, "" if there is none."""
        self._unit = time_unit
        self._setting = unit_setting
        self._warned: set[str] = set()
        self.units = UnitCheck(time_unit, unit_setting)
        self.all_rounded = NOTHING
        self.watches_fields = True

    def unknown_fields(self, items: Iterable[bytes | msgspec.Raw]) -> None:
        """Warn that some valid events have fields that are not read, and stop looking for more.

        items: the events' bytes.
        """
        self.watches_fields = False
        names = unknown_fields(items)
        if names:
            self._warn_once("unknown_fields", fields=named(names), meaning="they are ignored")

    def no_time(self) -> None:
        """Warn that valid events have no time."""
        self._warn_once(
            "time_missing", meaning="such events get the timestamp of their Kafka record"
        )

    def truncate(self, topic: str) -> None:
        """Warn that a table was truncated. topic: of its changes."""
        self._warn_once(
            "table_truncated",
            topic=topic,
            meaning="truncated: edges before it stay, since no record names its rows",
            action="delete their nodes or edges, or start a new data_dir, if they must go",
        )

    def tombstone(self, topic: str, error: str) -> None:
        """Warn that a tombstone of a change event was skipped. error: the reason why it deletes
        nothing."""
        self._warn_once(
            "tombstone_skipped",
            topic=topic,
            error=error,
            meaning="tombstones without the event that deleted the row are skipped: if its edge is "
            "in the log, it stays",
        )

    def rounded(self, found: Rounded) -> None:
        """Count rounded values of valid events, and warn about them."""
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
            action=f"send {self._unit}, or {change_unit(self._setting, unit)} before the first "
            "event",
        )

    def times(self, time_us: Int64, now_us: int) -> None:
        """Warn if times of valid events look like another unit.

        Valid times are not far ahead of the clock, so only a coarser unit is possible.
        """
        if not len(time_us) or not self._setting:
            return
        self.units.add(time_us, now_us)
        if "time_unit_suspicious" in self._warned:
            return
        if self.units.found is not None:
            self.unit(self.units.found.looks_like)
            return
        if time_us.min() * (1 - NEAR) * 1000 > now_us:
            return  # no coarser unit fits the earliest time
        # A time in a coarser unit is smaller than the clock by the ratio of the units. Days count
        # only if all times look like them: seconds that count from 0 pass through their numbers.
        for name, ns in UNITS_NS.items():
            scale = ns // UNITS_NS[self._unit]
            if scale <= 1 or name == "days":
                continue
            if (np.abs(time_us - now_us / scale) < NEAR * now_us / scale).any():
                self.unit(name)
                return

    def timestamps(self, stamps: Sequence[int]) -> None:
        """Count timestamps of records that cannot be milliseconds, and warn about them."""
        if not stamps:
            return
        metrics.odd_timestamps.inc(len(stamps))
        self._warn_once(
            "timestamp_suspicious",
            timestamp=str(stamps[0]),
            looks_like="s" if stamps[0] < SECONDS_UNTIL else "us or ns",
            meaning="timestamps of Kafka records are milliseconds, so it counts as none",
            action="let the producer send milliseconds, or set message.timestamp.type of the "
            "topic to LogAppendTime",
        )

    def _warn_once(self, kind: str, **fields: str) -> None:
        """Log a warning the first time that its kind occurs."""
        if kind not in self._warned:
            self._warned.add(kind)
            metrics.odd_events.labels(kind).set(1)
            logger.warning(kind, **fields)

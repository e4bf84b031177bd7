"""What looks odd in events that are valid: said once a process, never once an event."""

from collections.abc import Sequence

import numpy as np
import structlog

from streamd.events import Int64
from streamd.telemetry import metrics

logger = structlog.get_logger()
UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
NEAR = 0.1
"""Share by which a time in another unit may miss the wall clock and still look like that unit: five
years and a half. A stream that counts from 0 rarely lies in it."""
MAX_NAMES = 8
MAX_NAME = 40
"""Names of fields in a text, and characters of each."""


def named(names: Sequence[str]) -> str:
    """Names of fields for a text: bounded, and what does not print is escaped."""
    shown = [n if n.isprintable() else ascii(n)[1:-1] for n in names[:MAX_NAMES]]
    some = ", ".join(n[:MAX_NAME] for n in shown)
    return some + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")


def other_unit(time_us: int, now_us: int, unit: str) -> str | None:
    """The unit, other than the stream's, in which a time would be near the wall clock."""
    for name, ns in UNITS_NS.items():
        if name != unit and abs(time_us * ns / UNITS_NS[unit] - now_us) < NEAR * now_us:
            return name
    return None


class Notices:
    """Warns of each kind of oddity once. Owner: the decoder."""

    def __init__(self, time_unit: str) -> None:
        self._unit = time_unit
        self._said: set[str] = set()

    def unknown_fields(self, names: Sequence[str]) -> None:
        """Valid events have fields that nothing reads."""
        if names:
            self._say("unknown_fields", fields=named(names), meaning="nothing reads them")

    def no_time(self) -> None:
        """Valid events have no time of their own."""
        self._say("time_missing", meaning="such events get the timestamp of their Kafka record")

    def unit(self, unit: str) -> None:
        """A time looks like one in another unit."""
        self._say(
            "time_unit_suspicious",
            looks_like=unit,
            stream_time_unit=self._unit,
            action=f"send {self._unit}, or set stream.time_unit before the first event",
        )

    def times(self, time_us: Int64, now_us: int) -> None:
        """Look at times of valid events: none is far ahead, so only coarser units can show."""
        if "time_unit_suspicious" in self._said or not len(time_us):
            return
        if time_us.min() * (1 - NEAR) * 1000 > now_us:
            return  # the usual case, in one pass
        for name, ns in UNITS_NS.items():
            scale = ns // UNITS_NS[self._unit]
            if scale > 1 and (np.abs(time_us - now_us / scale) < NEAR * now_us / scale).any():
                self.unit(name)
                return

    def _say(self, kind: str, **fields: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            metrics.odd_events.labels(kind).set(1)
            logger.warning(kind, **fields)

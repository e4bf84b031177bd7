"""Progress of long work: how far it is and how long it still takes, for a terminal, a log and a
heartbeat."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import structlog
from prometheus_client import Gauge
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

logger = structlog.get_logger()
RATE_SECONDS = 60.0
"""Time over which a rate is measured, so that work whose later part is slower shows it soon."""
SURE_SECONDS = 1.0
"""Least time over which a rate is measured: a shorter one tells nothing of the rest."""
SURE_SHARE = 0.05
"""Least share of the work after which a time left is given: the first parts differ too much."""
LINE_SECONDS = 10.0
"""Time between two lines of a log, so that work of an hour leaves a few hundred."""
TERMINAL_SECONDS = 0.1
"""Time between two changes of a terminal's line: more would only flicker."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How far some work is.

    done, total: in units of the work. share: from 0 to 1, it never falls. rate: units a second,
    None until one was measured. seconds_left: None until then, and before SURE_SHARE and the
    second unit of the work.
    """

    done: int
    total: int
    share: float
    rate: float | None
    seconds_left: float | None

    def text(self, unit: str) -> str:
        """The reading in words, as "42 %, 4,200 of 10,000 events, 510/s, 12 s left"."""
        parts = [f"{int(100 * self.share + 1e-9)} %", f"{self.done:,} of {self.total:,} {unit}"]
        if self.rate is not None:
            parts.append(f"{self.rate:,.0f}/s" if self.rate >= 10 else f"{self.rate:.2g}/s")
        if self.seconds_left is not None:
            parts.append(f"{span(self.seconds_left)} left")
        return ", ".join(parts)

    def fields(self) -> dict[str, Any]:
        """The reading as fields of a log line, a heartbeat or an answer."""
        left = None if self.seconds_left is None else round(self.seconds_left)
        return {"share": int(1000 * self.share + 1e-9) / 1000, "seconds_left": left}


def span(seconds: float) -> str:
    """Write a length of time as "12 s", "3 min" or "2 h 5 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class Meter:
    """Measures the share, rate and time left of one piece of work, by its last minute. Owner: the
    loop that does it.

    The time up to the first unit of work is left out once there is a second one: kernels are
    compiled and models made in it.
    """

    def __init__(self, done: int = 0, monotonic: Callable[[], float] = time.monotonic) -> None:
        """done: what was done before the meter began, which tells nothing of the rate."""
        self._monotonic = monotonic
        self._first = done
        self._measured = deque([(monotonic(), done)])
        self._begun: tuple[float, int] | None = None
        """When the first units were done, and how many; None before."""
        self._is_warm = False
        self._share = 0.0

    def note(self, done: int) -> None:
        """Take note of the first units of work."""
        if self._is_warm or done <= self._first:
            return
        if self._begun is None:
            self._begun = self._monotonic(), done
        elif done > self._begun[1]:
            # Measure from the first unit on.
            self._is_warm = True
            while self._measured and self._measured[0][0] < self._begun[0]:
                self._measured.popleft()
            self._measured.appendleft(self._begun)

    def at(self, done: int, total: int) -> Reading:
        """Take a reading. total may grow while the work goes on; 0 of 0 is all of it."""
        # Forget what was measured before the last minute, but for its newest point.
        now = self._monotonic()
        while len(self._measured) > 1 and self._measured[1][0] <= now - RATE_SECONDS:
            self._measured.popleft()
        self.note(done)

        # The rate is that of the points which are left.
        since, before = self._measured[0]
        took = now - since
        did = done - before
        rate = did / took if took >= SURE_SECONDS and did > 0 else None
        if now - self._measured[-1][0] >= SURE_SECONDS:
            self._measured.append((now, done))

        # A share that falls, as where the total grew, would look like lost work.
        self._share = max(self._share, min(1.0, done / total) if total > 0 else 1.0)
        # The first unit took the start too.
        is_sure = self._is_warm and done - self._first >= SURE_SHARE * (total - self._first)
        left = 0.0 if done >= total else (total - done) / rate if rate and is_sure else None
        return Reading(done=done, total=total, share=self._share, rate=rate, seconds_left=left)


class ProgressLine:
    """Shows a command's progress: on a terminal one line that changes, elsewhere a line every
    LINE_SECONDS and one at the end, never wrapped.

    A context manager: a part that no error cuts short is done, and shown as 100 %.
    """

    def __init__(
        self,
        console: Console,
        what: str,
        unit: str = "events",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """what: the first part of the work, in words. unit: of its numbers."""
        self.what = what
        self._unit = unit
        self._console = console
        self._monotonic = monotonic

        # Rich draws the line that changes; where it is disabled it draws nothing.
        self._is_live = console.is_interactive and console.file.isatty()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis"),
            ),
            TimeElapsedColumn(),
            console=console,
            disable=not self._is_live,
        )

        # The part that is measured now.
        self._task = self._bar.add_task(what)
        self._meter = Meter(0, monotonic)
        self._begun = self._shown = monotonic()
        self._latest: tuple[int, int] | None = None

    def begin(self, what: str, unit: str = "events", done: int = 0) -> None:
        """Begin another part of the work; the one before is done. done: of the new part, before it
        began."""
        self.end()
        self.what = what
        self._unit = unit
        self._latest = None
        self._meter = Meter(done, self._monotonic)
        self._begun = self._shown = self._monotonic()
        self._bar.update(self._task, description=what)

    def at(self, done: int, total: int) -> None:
        """Report how far the part is; call it as often as you like."""
        self._latest = done, total
        self._meter.note(done)
        now = self._monotonic()
        if now - self._shown >= (TERMINAL_SECONDS if self._is_live else LINE_SECONDS):
            self._shown = now
            self._print(f"{self.what}: {self._meter.at(done, total).text(self._unit)}")

    def of(self, what: str, done: int, total: int, unit: str = "events") -> None:
        """Report how far a part is, beginning it at its first report."""
        if what != self.what:
            self.begin(what, unit, done)
        self.at(done, total)

    def note(self, text: str) -> None:
        """Print a sentence above the line, for example the reason for a wait."""
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def end(self) -> None:
        """Show the present part as done, if it was reported on at all."""
        if self._latest is not None:
            took = self._monotonic() - self._begun
            self._print(f"{self.what}: 100 %, {self._latest[0]:,} {self._unit} in {span(took)}")

    def leave(self) -> None:
        """Show how far the present part is, and end it unfinished."""
        if self._latest is not None:
            self._print(f"{self.what}: {self._meter.at(*self._latest).text(self._unit)}")
            self._latest = None

    def _print(self, text: str) -> None:
        if self._is_live:
            self._bar.update(self._task, description=text)
        else:
            self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def __enter__(self) -> "ProgressLine":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            self.end()
        else:
            self.leave()
        self._bar.stop()


class RoleProgress:
    """Reports a role's long work: a log line every LINE_SECONDS, a metric, and readings for its
    heartbeat."""

    def __init__(
        self,
        event: str,
        ratio: Gauge | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        **fields: Any,
    ) -> None:
        """event: name of the log lines. ratio: the metric that takes the share. fields: of every
        line."""
        self._event = event
        self._ratio = ratio
        self._fields = fields
        self._monotonic = monotonic
        self._meter = Meter(0, monotonic)
        self._said = monotonic()

    def at(self, done: int, total: int) -> Reading:
        """Report how far the work is; call it as often as you like."""
        reading = self._meter.at(done, total)
        if self._ratio is not None:
            self._ratio.set(reading.share)
        now = self._monotonic()
        if now - self._said >= LINE_SECONDS:
            self._said = now
            logger.info(
                self._event,
                **self._fields,
                done=done,
                total=total,
                **reading.fields(),
                a_second=None if reading.rate is None else round(reading.rate, 1),
            )
        return reading

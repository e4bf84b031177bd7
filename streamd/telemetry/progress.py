"""Progress of long work, with the estimated time left, for a terminal, a log and a heartbeat."""

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

from streamd.number_texts import count_noun, span

logger = structlog.get_logger()
RATE_SECONDS = 60.0
"""Time over which a rate is measured; a later, slower part of the work soon shows in it."""
SURE_SECONDS = 1.0
"""Minimum time over which a rate is measured: a shorter time gives no estimate for the rest."""
SURE_SHARE = 0.05
"""Minimum share of the work before a time left is given: the first parts vary too much."""
LINE_SECONDS = 10.0
"""Interval of log lines, so that an hour of work logs a few hundred."""
TERMINAL_SECONDS = 0.1
"""Interval of changes to a terminal's line: more would flicker."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The progress of some work.

    done, total: in units of the work. share: from 0 to 1; it never decreases. rate: units a second,
    None before one was measured. seconds_left: None before a rate was measured, before SURE_SHARE
    of the work, and before its second unit.
    """

    done: int
    total: int
    share: float
    rate: float | None
    seconds_left: float | None

    def text(self, unit: str) -> str:
        """The reading as text, such as "42 %, 4,200 of 10,000 events, 510/s, 12 s left"."""
        total = count_noun(self.total, unit.removesuffix("s"))
        parts = [f"{int(100 * self.share + 1e-9)} %", f"{self.done:,} of {total}"]
        if self.rate is not None:
            parts.append(f"{self.rate:,.0f}/s" if self.rate >= 10 else f"{self.rate:.2g}/s")
        if self.seconds_left is not None:
            parts.append(f"{span(self.seconds_left)} left")
        return ", ".join(parts)

    def fields(self) -> dict[str, Any]:
        """The reading as fields of a log line, a heartbeat or an answer."""
        left = None if self.seconds_left is None else round(self.seconds_left)
        return {"share": int(1000 * self.share + 1e-9) / 1000, "seconds_left": left}


class Meter:
    """Measures share, rate and time left of one piece of work, from its last minute. Owner: the
    loop that does the work.

    Once there is a second unit of work, the time up to the first one is ignored: it includes
    compilation of kernels and construction of models.
    """

    def __init__(self, done: int = 0, monotonic: Callable[[], float] = time.monotonic) -> None:
        """done: units that were done before the meter started; they do not count in the rate."""
        self._monotonic = monotonic
        self._first = done
        self._measured = deque([(monotonic(), done)])
        self._begun: tuple[float, int] | None = None
        """Time of the first units, and their number; None before."""
        self._is_warm = False
        self._share = 0.0

    def note(self, done: int) -> None:
        """Record units that are done, before the first reading."""
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
        """Take a reading. total may grow during the work; 0 of 0 is all of it."""
        # Drop points older than the last minute, except the newest of them.
        now = self._monotonic()
        while len(self._measured) > 1 and self._measured[1][0] <= now - RATE_SECONDS:
            self._measured.popleft()
        self.note(done)

        # The rate of the remaining points.
        since, before = self._measured[0]
        took = now - since
        did = done - before
        rate = did / took if took >= SURE_SECONDS and did > 0 else None
        if now - self._measured[-1][0] >= SURE_SECONDS:
            self._measured.append((now, done))

        # A falling share, for example because total grew, would look like lost work.
        self._share = max(self._share, min(1.0, done / total) if total > 0 else 1.0)
        # The time of the first unit includes the start.
        is_sure = self._is_warm and done - self._first >= SURE_SHARE * (total - self._first)
        left = 0.0 if done >= total else (total - done) / rate if rate and is_sure else None
        return Reading(done=done, total=total, share=self._share, rate=rate, seconds_left=left)


class ProgressLine:
    """Prints a command's progress: one changing line on a terminal, else a line every LINE_SECONDS
    and one at the end, never wrapped.

    A context manager: at the end without an error, the part is printed as 100 %.
    """

    def __init__(
        self,
        console: Console,
        what: str,
        unit: str = "events",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """what: the first part of the work, as text. unit: of its numbers."""
        self.what = what
        self._unit = unit
        self._console = console
        self._monotonic = monotonic

        # Rich draws the changing line; if disabled, it draws nothing.
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

        # The present part.
        self._task = self._bar.add_task(what)
        self._meter = Meter(0, monotonic)
        self._begun = self._shown = monotonic()
        self._latest: tuple[int, int] | None = None
        self._is_wait = False

    def begin(self, what: str, unit: str = "events", done: int = 0) -> None:
        """Begin the next part of the work; the previous one is done. done: units of the new part
        that were done before it began."""
        self.end()
        self.what = what
        self._unit = unit
        self._latest = None
        self._is_wait = False
        self._meter = Meter(done, self._monotonic)
        self._begun = self._shown = self._monotonic()
        self._bar.update(self._task, description=what)

    def at(self, done: int, total: int) -> None:
        """Report the part's progress; may be called at any rate."""
        self._latest = done, total
        self._meter.note(done)
        now = self._monotonic()
        if now - self._shown >= (TERMINAL_SECONDS if self._is_live else LINE_SECONDS):
            self._shown = now
            self._print(f"{self.what}: {self._reading(done, total)}")

    def _reading(self, done: int, total: int) -> str:
        if self._is_wait and done >= total:
            return f"for {span(self._monotonic() - self._begun)} so far"
        return self._meter.at(done, total).text(self._unit)

    def of(self, what: str, done: int, total: int, unit: str = "events") -> None:
        """Report a part's progress; its first report begins the part."""
        if what != self.what:
            self.begin(what, unit, done)
        self.at(done, total)

    def wait(self, what: str, done: int = 0, total: int = 0, unit: str = "events") -> None:
        """Report a wait for other processes; its first report begins the part. It never counts as
        done, even if all of its units are, since the others have more to do."""
        if what != self.what:
            self.begin(what, unit, done)
        self._is_wait = True
        self.at(done, total)

    def note(self, text: str) -> None:
        """Print a sentence above the line, for example the reason for a wait."""
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def end(self) -> None:
        """Print the present part as done, if it had a report and is no wait."""
        if self._latest is not None and not self._is_wait:
            took = self._monotonic() - self._begun
            done = count_noun(self._latest[0], self._unit.removesuffix("s"))
            self._print(f"{self.what}: 100 %, {done} in {span(took)}")

    def leave(self) -> None:
        """Print the progress of the present part, and end it unfinished."""
        # Nothing of nothing is no progress: the error alone explains it.
        if self._latest is not None and (self._is_wait or self._latest != (0, 0)):
            self._print(f"{self.what}: {self._reading(*self._latest)}")
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
        """event: name of the log lines. ratio: the metric of the share. fields: of every line."""
        self._event = event
        self._ratio = ratio
        self._fields = fields
        self._monotonic = monotonic
        self._meter = Meter(0, monotonic)
        self._said = monotonic()

    def at(self, done: int, total: int) -> Reading:
        """Report the progress of the work; may be called at any rate."""
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

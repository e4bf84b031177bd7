"""Records on their way to the score topic: kept until they are acknowledged, sent again where they
fail, and taken back where a delete hides what they say."""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import structlog

from streamd.errors import KafkaError
from streamd.eventlog.log_changes import Changes
from streamd.scoring.scorer import Scored

logger = structlog.get_logger()
MAX_WAITING = 1_000
"""Most records that wait for an acknowledgement, some megabytes. Events behind them wait in the
log."""
RETRY_SECONDS = 1.0
"""Pause before a topic that did not take a record is tried again."""


class Receipt(Protocol):
    """What became of a record that was sent."""

    def is_written(self) -> bool:
        """Whether the topic has it, False while it is not known. Raises: KafkaError where it
        failed."""
        ...


class Sink(Protocol):
    """Takes records, in order. It may wait for seconds, not for minutes."""

    def send(self, key: bytes, value: bytes) -> Receipt:
        """Raises: KafkaError."""
        ...

    def abandon(self) -> None:
        """Close it without sending what it still holds."""
        ...


@dataclass(slots=True, eq=False)
class _Waiting:
    """A record that is not acknowledged. visible_at: when its event became visible, monotonic
    seconds. receipt: None where it has to be sent."""

    scored: Scored
    visible_at: float
    receipt: Receipt | None = None
    is_done: bool = False


class Outbox:
    """Owner: the role's loop.

    open_sink: makes a sink, or raises KafkaError. written: called with the time at which an event
    became visible, once its record is in the topic. skipped: as the scorer's.
    """

    def __init__(
        self,
        open_sink: Callable[[], Sink],
        written: Callable[[float], None],
        skipped: Callable[[str, int], None],
    ) -> None:
        self._open_sink = open_sink
        self._written = written
        self._skipped = skipped
        self._sink: Sink | None = None
        self._waiting: deque[_Waiting] = deque()
        self._set_aside: list[_Waiting] = []
        """Records that were not acknowledged when another machine took over."""
        self._deleted_aside: list[int] = []
        """Events of such records that were deleted since."""
        self._retry_at = 0.0
        self._away = False

    def __len__(self) -> int:
        """Number of records that are not acknowledged."""
        return len(self._waiting)

    @property
    def room(self) -> int:
        """Records that it takes before some are acknowledged."""
        return 0 if self._retry_at else max(0, MAX_WAITING - len(self._waiting))

    @property
    def is_away(self) -> bool:
        """Whether the topic has taken nothing since a record failed."""
        return self._away

    def complete_before(self, position: int) -> int:
        """Id below which each event is in the topic or was passed over. position: of the scorer."""
        return self._waiting[0].scored.record.event if self._waiting else position

    def open(self) -> None:
        """Open the sink before a record needs it: the first one would wait for its connections.
        Where that fails now, the first record tries again."""
        if self._sink is None and not self._retry_at:
            with contextlib.suppress(KafkaError):
                self._sink = self._open_sink()

    def add(self, scored: Sequence[Scored], visible_at: Sequence[float]) -> None:
        """Take records, by event id, each with the time at which its event became visible."""
        self._waiting.extend(_Waiting(*one) for one in zip(scored, visible_at, strict=True))

    def step(self, now: float, oldest: float) -> None:
        """Send what has to be sent, and see what is acknowledged.

        now: monotonic seconds. oldest: records of events that became visible before are given up,
        where the topic does not take them.
        """
        self._take_receipts(now)
        if self._retry_at and now >= self._retry_at:
            self._retry_at = 0.0
        if not self._retry_at:
            self._send(now)
        if self._retry_at:
            self._give_up(oldest)

    def apply(self, changes: Changes) -> None:
        """Take back the records of deleted events."""

        def is_hidden(one: Scored) -> bool:
            src, dst = np.array([one.src]), np.array([one.dst])
            return bool(changes.deletions.hides(one.record.event, src, dst)[0])

        if changes.has_deletes:
            self.forget(is_hidden)

    def forget(self, hides: Callable[[Scored], bool]) -> None:
        """Take back the records that a delete hides, so that nothing of them is sent from now on.

        What was handed to the client cannot be taken back singly: it is closed, and another one
        sends the other records, perhaps again.
        """
        gone = [one for one in self._set_aside if hides(one.scored)]
        self._set_aside = [one for one in self._set_aside if one not in gone]
        self._deleted_aside += [one.scored.record.event for one in gone]
        hidden = [one for one in self._waiting if not one.is_done and hides(one.scored)]
        if not hidden:
            return
        self._abandon()
        self._skipped("deleted", len(hidden))
        kept = (one for one in self._waiting if one not in hidden)
        self._waiting = deque(kept)

    def close(self, patience: Callable[[], bool]) -> None:
        """Wait for acknowledgements while `patience` says so, then end."""
        while self._waiting and self._sink is not None and patience():
            self._take_receipts(0.0)
        self._abandon()

    def set_aside(self) -> None:
        """Send no record any more, as another machine scores from now on. They are kept in case
        this machine leads again before the other one has scored: it cannot score them again."""
        self._abandon()
        self._set_aside = [one for one in self._waiting if not one.is_done]
        self._waiting.clear()
        self._retry_at = 0.0

    def resume(self, start: int, oldest: float) -> None:
        """Take up the records that were set aside, of events from `start` on that became visible
        since `oldest`. Those before `start` are in the topic by now."""
        due = [one for one in self._set_aside if one.scored.record.event >= start]
        kept = [one for one in due if one.visible_at >= oldest]
        if late := len(due) - len(kept):
            self._skipped("old", late)
        if deleted := sum(event >= start for event in self._deleted_aside):
            self._skipped("deleted", deleted)
        self._waiting.extend(kept)
        self._set_aside = []
        self._deleted_aside = []

    def _take_receipts(self, now: float) -> None:
        """Mark what is written. A record that failed is sent again later, with all that is not
        written yet."""
        try:
            for one in self._waiting:
                if one.is_done or one.receipt is None:
                    continue
                if one.receipt.is_written():
                    one.is_done = True
                    self._written(one.visible_at)
                    if self._away:
                        logger.info("score_topic_back")
                        self._away = False
        except KafkaError as error:
            self._failed(now, error)
        while self._waiting and self._waiting[0].is_done:
            self._waiting.popleft()

    def _send(self, now: float) -> None:
        try:
            for one in self._waiting:
                if one.is_done or one.receipt is not None:
                    continue
                if self._sink is None:
                    self._sink = self._open_sink()
                record = one.scored.record
                value = record.encode(self._waiting[0].scored.record.event)
                one.receipt = self._sink.send(record.key(), value)
        except KafkaError as error:
            self._failed(now, error)

    def _failed(self, now: float, error: KafkaError) -> None:
        if not self._away:
            self._away = True
            logger.warning(
                "score_topic_away", error=str(error), meaning="events wait, then get no score"
            )
        self._abandon()
        self._retry_at = now + RETRY_SECONDS

    def _abandon(self) -> None:
        """Close the sink; all that is not written has to be sent again."""
        if self._sink is not None:
            self._sink.abandon()
        self._sink = None
        for one in self._waiting:
            if not one.is_done:
                one.receipt = None

    def _give_up(self, oldest: float) -> None:
        """Drop the records that have waited too long."""
        late = [one for one in self._waiting if not one.is_done and one.visible_at < oldest]
        if late:
            self._skipped("broker", len(late))
            kept = (one for one in self._waiting if one.is_done or one.visible_at >= oldest)
            self._waiting = deque(kept)

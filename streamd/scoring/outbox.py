"""Records on their way to the score topic: kept until they are acknowledged, sent again after a
failure, and dropped if a delete hides their event."""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import structlog

from streamd.errors import KafkaError
from streamd.eventlog.log_changes import Changes
from streamd.scoring.scorer import Scored

logger = structlog.get_logger()
MAX_WAITING = 1_000
"""Maximum number of records that wait for an acknowledgement, some megabytes. Later events wait in
the log."""
RETRY_SECONDS = 1.0
"""Pause before another try after the topic rejected a record."""


class Receipt(Protocol):
    """The acknowledgement of a record that was sent."""

    def is_written(self) -> bool:
        """Whether the topic has the record; False while that is unknown. Raises: KafkaError if it
        failed."""
        ...


class Sink(Protocol):
    """Accepts records, in order. It may block for seconds, not for minutes."""

    def send(self, key: bytes, value: bytes, alarm: bytes | None = None) -> Receipt:
        """Send a score, and its alarm to the other topic, None for none; both have one receipt.
        Raises: KafkaError."""
        ...

    def abandon(self) -> None:
        """Close the sink, and drop its unsent records."""
        ...


@dataclass(slots=True, eq=False)
class _Waiting:
    """A record that is not acknowledged. visible_at: monotonic seconds at which its event became
    visible. receipt: None if it has to be sent."""

    scored: Scored
    visible_at: float
    receipt: Receipt | None = None
    is_done: bool = False


class Outbox:
    """Keeps and sends the records that the topic has not acknowledged. Owner: the role's loop.

    open_sink: makes a sink, or raises KafkaError. written: called with the time at which an event
    became visible, once its record is in the topic. skipped: as in `Scorer`.
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
        self.why = ""
        """Why the topic accepts no records; empty if it does."""
        self._away_since = 0.0

    def __len__(self) -> int:
        """Number of records that are not acknowledged."""
        return len(self._waiting)

    @property
    def room(self) -> int:
        """Number of records that it accepts before some are acknowledged."""
        return 0 if self._retry_at else max(0, MAX_WAITING - len(self._waiting))

    @property
    def is_away(self) -> bool:
        """Whether the topic has accepted no record since one failed."""
        return bool(self.why)

    def away_fields(self, now: float) -> dict[str, Any]:
        """Fields of the heartbeat about a topic that accepts no records; empty if it does. now:
        monotonic seconds."""
        if not self.why:
            return {}
        return {"topic_away": self.why, "topic_away_seconds": now - self._away_since}

    def complete_before(self, position: int) -> int:
        """Id below which each event is in the topic or was skipped. position: of the scorer."""
        return self._waiting[0].scored.record.event if self._waiting else position

    def open(self) -> None:
        """Open the sink before the first record, which would else wait for its connections. If that
        fails now, the first record tries again."""
        if self._sink is None and not self._retry_at:
            with contextlib.suppress(KafkaError):
                self._sink = self._open_sink()

    def add(self, scored: Sequence[Scored], visible_at: Sequence[float]) -> None:
        """Append records, by event id, each with the time at which its event became visible."""
        self._waiting.extend(_Waiting(*one) for one in zip(scored, visible_at, strict=True))

    def step(self, now: float, oldest: float) -> None:
        """Send the due records, and process acknowledgements.

        now: monotonic seconds. oldest: if the topic accepts no records, those of events that became
        visible before this time are dropped.
        """
        self._take_receipts(now)
        if self._retry_at and now >= self._retry_at:
            self._retry_at = 0.0
        if not self._retry_at:
            self._send(now)
        if self._retry_at:
            self._give_up(oldest)

    def apply(self, changes: Changes) -> None:
        """Drop the records of deleted events."""

        def is_hidden(one: Scored) -> bool:
            src, dst = np.array([one.src]), np.array([one.dst])
            return bool(changes.deletions.hides(one.record.event, src, dst)[0])

        if changes.has_deletes:
            self.forget(is_hidden)

    def forget(self, hides: Callable[[Scored], bool]) -> None:
        """Drop the records that a delete hides, so that none of them is sent from now on.

        Single records cannot be removed from the Kafka client. So the client is closed, and another
        one sends the other records, perhaps again.
        """
        gone = [one for one in self._set_aside if hides(one.scored)]
        self._set_aside = [one for one in self._set_aside if one not in gone]
        # Records that were set aside are deleted too.
        self._deleted_aside += [one.scored.record.event for one in gone]
        hidden = [one for one in self._waiting if not one.is_done and hides(one.scored)]
        if not hidden:
            return
        # The producer may hold some of them: drop all its records, and send the others again.
        self._abandon()
        self._skipped("deleted", len(hidden))
        kept = (one for one in self._waiting if one not in hidden)
        self._waiting = deque(kept)

    def close(self, patience: Callable[[], bool]) -> None:
        """Wait for acknowledgements while `patience` returns True, then end."""
        while self._waiting and self._sink is not None and patience():
            self._take_receipts(0.0)
        self._abandon()

    def set_aside(self) -> None:
        """Stop sending, as another machine scores from now on. The records are kept in case this
        machine leads again before the other one has scored: it cannot score them again."""
        self._abandon()
        # Acknowledged records are in the topic already.
        self._set_aside = [one for one in self._waiting if not one.is_done]
        self._waiting.clear()
        self._retry_at = 0.0

    def resume(self, start: int, oldest: float) -> None:
        """Send the records again that were set aside, of events from `start` on that became visible
        since `oldest`. The topic has those before `start` by now."""
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
        """Process the acknowledgements. After a failure, all records that are not written yet are
        sent again later."""
        try:
            for one in self._waiting:
                if one.is_done or one.receipt is None:
                    continue
                if one.receipt.is_written():
                    one.is_done = True
                    self._written(one.visible_at)
                    if self.why:
                        seconds = round(now - self._away_since)
                        logger.info("score_topic_back", away_seconds=seconds)
                        self.why = ""
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
                one.receipt = self._sink.send(record.key(), value, one.scored.alarm)
        except KafkaError as error:
            self._failed(now, error)

    def _failed(self, now: float, error: KafkaError) -> None:
        if not self.why:
            self._away_since = now
            logger.warning(
                "score_topic_away",
                error=str(error),
                meaning="events wait, and get no score if too old",
            )
        self.why = str(error)
        self._abandon()
        self._retry_at = now + RETRY_SECONDS

    def _abandon(self) -> None:
        """Close the sink; all records that are not written have to be sent again."""
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

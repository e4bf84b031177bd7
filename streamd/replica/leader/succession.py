"""Decides when a standby leads: after a leader's silence during which the brokers answered, on
request, or at its restart if it led last."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import structlog

from streamd.replica.changelog.interface import ChangelogReader
from streamd.replica.follower.follower import Follower
from streamd.replica.leader import leading
from streamd.replica.leader.fitness import Fitness
from streamd.replica.leader.publisher import ChangelogPublisher
from streamd.replica.start import has_log
from streamd.store import manifests
from streamd.store.objects import Store

logger = structlog.get_logger()
ASK_SECONDS = 0.5
"""Pause between two requests to the brokers for the changelog's end offset."""
ANSWER_SECONDS = 3.0
"""A broker that took longer to answer was away. Records that a leader sent meanwhile may be
missing, so the silence starts again."""
JITTER = 0.25
"""Largest share of the timeout that a standby waits longer, at random, so that two seldom claim at
once. If both do, the first claim counts."""


class Silence:
    """Time without a record of a leader, while the brokers answered. Owner: `StandbySuccession`.

    All times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._answered = 0.0

    def note_record(self, now: float) -> None:
        """A record of the leader was read."""
        self._since = self._answered = now

    def note_answer(self, now: float, records: int) -> None:
        """The brokers reported the number of unread records of the changelog."""
        if records:
            # Behind, as after a pause of this process: the unread records may be the leader's.
            self._since = None
        elif self._since is None or now - self._answered > ANSWER_SECONDS:
            self._since = now
        self._answered = now

    def seconds(self, now: float) -> float:
        """Length of the silence up to the brokers' newest answer; 0 if this member is behind."""
        return 0.0 if self._since is None else self._answered - self._since


class Succession(Protocol):
    """Decides whether a follower claims the lead."""

    @property
    def cannot_lead(self) -> str:
        """The reason why this member cannot lead, "" if it can."""
        ...

    def is_due(self, follower: Follower, reader: ChangelogReader, heard: int) -> bool:
        """Whether to claim the lead. heard: number of the leader's records in the last read of the
        changelog. Raises: KafkaError, StoreError."""
        ...

    def lead(self) -> ChangelogPublisher:
        """Claim the lead. Raises: FencedError if another member leads; KafkaError."""
        ...


class StandbySuccession:
    """The succession of a standby. Owner: the follow loop.

    led_term: the last term in which this directory led, 0 if there is none.
    """

    def __init__(
        self,
        data_dir: Path,
        store: str,
        timeout_seconds: float,
        monotonic: Callable[[], float],
        lead: Callable[[int], ChangelogPublisher],
        check: Callable[[], None] = lambda: None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Args: store: URL of the store with manifests. timeout_seconds: silence of a leader after
        which this member leads. monotonic: seconds. lead: claims the lead after the leader of a
        given term. check: raises a StreamdError if this machine could not lead. chance: a number
        from 0 to 1."""
        self._data_dir = data_dir
        self._store = store
        self._timeout = timeout_seconds
        self._monotonic = monotonic
        self._lead = lead
        self._chance = chance
        self._fitness = Fitness(check, monotonic)
        self._silence = Silence()
        self._asked_at = -ASK_SECONDS
        self._wait_seconds = self._drawn()
        self._after_term = 0
        """Term of the leader that is silent or hands over."""
        self.led_term = leading.led_term(self._data_dir)

    @property
    def cannot_lead(self) -> str:
        """As in `Succession`."""
        return self._fitness.why

    def _drawn(self) -> float:
        return self._timeout * (1 + JITTER * self._chance())

    def is_due(self, follower: Follower, reader: ChangelogReader, heard: int) -> bool:
        """As in `Succession`."""
        now = self._monotonic()
        if heard:
            self._silence.note_record(now)
        if now - self._asked_at < ASK_SECONDS:
            return False

        # A read without records is no proof of silence: perhaps no broker answers, so ask one.
        begin, end = reader.bounds()
        answered = self._monotonic()
        behind = max(0, end - reader.position)
        self._silence.note_answer(answered, behind)
        self._asked_at = answered
        if behind:
            return False
        why = self._reason(follower, answered)
        if not self._fitness.could_lead(answered, is_due=bool(why)) or not why:
            return False
        if not has_log(self._data_dir) and not self._may_begin(begin):
            return False
        self._after_term = follower.term
        logger.info("claiming_the_lead", why=why, seq=follower.seq, term=follower.term)
        return True

    def _reason(self, follower: Follower, now: float) -> str:
        """The reason why this member claims the lead once it has read all of the changelog, "" if
        there is none."""
        if leading.is_asked_to_lead(self._data_dir):
            return "on request"
        if self.led_term and self.led_term == follower.term:
            return "it led last"
        silent = self._silence.seconds(now)
        return f"no leader for {silent:.1f} s" if silent >= self._wait_seconds else ""

    def _may_begin(self, first_offset: int) -> bool:
        """Whether a member without a log may start one: only if changelog and store show no other
        log.

        first_offset: of the changelog, which was read to its end. Raises: StoreError.
        """
        return first_offset == 0 and not manifests.names(Store(self._store))

    def lead(self) -> ChangelogPublisher:
        """As in `Succession`."""
        # If the claim fails, the next one waits for another silence.
        self._silence = Silence()
        self._wait_seconds = self._drawn()
        self.led_term = 0
        publisher = self._lead(self._after_term)
        leading.withdraw(self._data_dir)
        return publisher

"""Compaction over machines: the trainer releases a request once no member holds deleted data."""

import time
from collections.abc import Callable
from pathlib import Path

import structlog

from streamd.eventlog.journal.tail import events_shown
from streamd.eventlog.upkeep.holds import ask_to_compact, asked_to_compact, read_compacted
from streamd.replica.members import known_member
from streamd.replica.models import records
from streamd.replica.models.trainer_term import TrainerTerm
from streamd.replica.models.trainer_topic import TrainerTopic

logger = structlog.get_logger()
BEYOND_SECONDS = 60.0
"""Age at which a compaction is refused that names an event beyond the log's end. A replica may
publish a commit some milliseconds before this machine does."""


class Compactions:
    """Releases requests to compact, and reports those that are done. Owner: the models
    publisher."""

    def __init__(
        self,
        log_dir: Path,
        lease_seconds: float,
        topic: TrainerTopic,
        trainer_term: TrainerTerm,
        on_step: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Args: log_dir: data directory of the log, whose ingest compacts. lease_seconds: longest
        wait for a member that does not answer. on_step, now: as in `ModelsPublisher`."""
        self._log_dir = log_dir
        self._lease_seconds = lease_seconds
        self._topic = topic
        self._term = trainer_term
        self._on_step = on_step
        self._now = now

    def step(self) -> None:
        """Release each request once every member has answered, or `lease_seconds` after the
        request; report the finished ones."""
        self._ask_again()
        self._leave_members()
        state = self._topic.state
        requests = state.compactions()
        num_events = events_shown(self._log_dir) if requests else 0
        for request in requests:
            if request.id in state.released:
                # Ingest removes the request's file once all deleted data is gone.
                if asked_to_compact(self._log_dir) is None:
                    self._on_step("compacted")
                    self._topic.append([self._done_record(request.id)])
                continue
            # No role will ever be past such an event, so all compactions would wait for it.
            if request.event > num_events:
                if self._now() - request.at > BEYOND_SECONDS:
                    self._topic.refuse(
                        request.id,
                        f"Event {request.event:,} is beyond the log's end, {num_events:,}.",
                    )
                continue
            late = sorted(state.members.keys() - state.answers.get(request.id, set()))
            if late and self._now() - request.at < self._lease_seconds:
                continue
            # The file comes first: if a kill left the record without it, compaction would count
            # as done.
            event = max(request.event, asked_to_compact(self._log_dir) or 0)
            ask_to_compact(self._log_dir, event)
            self._on_step("released")
            self._topic.append([self._release_record(request, late)])
            if late:
                logger.warning("members_left_out", members=late, lease_seconds=self._lease_seconds)

    def _ask_again(self) -> None:
        """Ask ingest here, once, for the compactions that an earlier trainer released, perhaps on
        another machine."""
        if self._term.has_asked:
            return
        state = self._topic.state
        done = read_compacted(self._log_dir)
        released = [r.event for r in state.compactions() if r.id in state.released]
        missing = [event for event in released if done is None or done.edge < event]
        if missing:
            ask_to_compact(self._log_dir, max(*missing, asked_to_compact(self._log_dir) or 0))
        self._term.has_asked = True

    def _leave_members(self) -> None:
        """Remove this machine from the members: it does not follow the log that it leads, so it
        would not answer. It has left by itself, unless it was killed as a follower."""
        name = known_member(self._log_dir)
        if name is not None and name in self._topic.state.members:
            self._topic.remove_member(name)

    def _done_record(self, request: str) -> Callable[[int], records.Known]:
        return lambda number: records.Compacted(
            term=self._topic.state.term, number=number, request=request
        )

    def _release_record(
        self, request: records.Request, left: list[str]
    ) -> Callable[[int], records.Known]:
        return lambda number: records.Released(
            term=self._topic.state.term,
            number=number,
            request=request.id,
            event=request.event,
            left=left,
        )

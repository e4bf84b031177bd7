"""A member's requests to the trainer by the models topic: to promote, to roll back, to compact."""

import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Literal

from streamd.errors import StreamdError, VersionError
from streamd.eventlog.deletions import deletes_until
from streamd.eventlog.journal.tail import JournalTail
from streamd.registry import Registry
from streamd.registry.journal import Move
from streamd.registry.outcome import Refusal, Waiting, outcome_of
from streamd.replica.members import member_name
from streamd.replica.models.records import Request, encode
from streamd.replica.models.state import ModelsState
from streamd.replica.models.topic import KafkaModelsTopic, ModelsTopic
from streamd.settings.loading import Settings

POLL_SECONDS = 0.1
"""Pause between two reads of the journal or the topic."""


class RequestedMoves:
    """Moves of the champion that the trainer of another machine executes. Safe to use from several
    threads."""

    def __init__(
        self,
        member: Callable[[], str],
        registry: Registry,
        wait_seconds: float,
        open_topic: Callable[[], ModelsTopic],
    ) -> None:
        """member: name of this machine. wait_seconds: longest wait until the trainer's answer
        reaches this machine."""
        self._member = member
        self._registry = registry
        self._wait_seconds = wait_seconds
        self._open_topic = open_topic
        self._topic: ModelsTopic | None = None
        self._lock = threading.Lock()

    def promote(self, name: str, who: str, why: str) -> Move | Waiting:
        """Ask to make a version champion. Returns: the move, or that its answer is still missing.
        Raises: VersionError if the trainer refuses, KafkaError."""
        return self._ask("promote", who, why, name)

    def rollback(self, who: str, why: str) -> Move | Waiting:
        """Ask to make the last proven version champion. Raises: as `promote`."""
        return self._ask("rollback", who, why, "")

    def _ask(
        self, action: Literal["promote", "rollback"], who: str, why: str, version: str
    ) -> Move | Waiting:
        deadline = time.monotonic() + self._wait_seconds
        request = _request(self._member(), action, who, why, version=version)
        with self._lock:
            if self._topic is None:
                self._topic = self._open_topic()
            self._topic.append(encode(request))
        while True:
            outcome = outcome_of(self._registry, request.id)
            if isinstance(outcome, Refusal):
                raise VersionError(f"The trainer refused it: {outcome.reason}")
            # Servers follow the published move, which is written just after the journal's line.
            if isinstance(outcome, Move) and self._is_shown(outcome):
                return outcome
            if time.monotonic() >= deadline:
                return outcome
            time.sleep(POLL_SECONDS)

    def _is_shown(self, move: Move) -> bool:
        """Whether servers here follow a move or a later one."""
        moves, shown = self._registry.journal.moves(), self._registry.shown()
        return move in moves and shown in moves and moves.index(shown) >= moves.index(move)


def compact_everywhere(
    settings: Settings,
    event: int,
    wait_seconds: float,
    tell: Callable[[str], None],
    topic: ModelsTopic,
) -> tuple[bool, str]:
    """Ask for compaction on all machines, and wait until the leader is done.

    Args: event: deletes before it are to become physical. `tell`: called with the machines that it
    waits for, as text. Returns: whether it is done, and a text for the user. Raises: KafkaError;
    StreamdError if the event is beyond the log's end.
    """
    request = ask_everywhere(settings, event, topic)
    state = ModelsState()
    deadline = time.monotonic() + wait_seconds
    while True:
        state.take(topic.read(POLL_SECONDS))
        if request in state.refused:
            return False, f"the trainer refused it: {state.refused[request]}"
        waiting = compaction_wait(state, request)
        if not waiting:
            return True, (
                "compacted: deleted data is gone from the leader's log and versions, and from the "
                "files of each member that answered; other members rebuild theirs"
            )
        tell(waiting)
        if time.monotonic() >= deadline:
            return False, f"not all deleted data is gone yet: {waiting}; the request stays open"


def ask_everywhere(settings: Settings, event: int, topic: ModelsTopic) -> str:
    """Ask for compaction on all machines. event: deletes before it are to become physical.

    Returns: id of the request. Raises: KafkaError; StreamdError if the event is beyond the log's
    end.
    """
    tail = JournalTail.open(settings.data_dir)
    num_events = 0 if tail is None else tail.state.num_edges
    if tail is None or event > num_events:
        raise StreamdError(
            f"Compaction was asked for before event {event:,}, and the log here ends at "
            f"{num_events:,}.",
            "name an event that the log has.",
        )
    seq = deletes_until(settings.data_dir, tail.state, event)[1]
    request = _request(_member(settings), "compact", "operator", "by hand", event=event, seq=seq)
    topic.append(encode(request))
    return request.id


def compaction_wait(state: ModelsState, request: str) -> str:
    """The machines for which a compaction waits, as text; "" if it is done. request: its id."""
    if state.is_done(request):
        return ""
    if request in state.released:
        return "waiting for the leader"
    late = sorted(state.members.keys() - state.answers.get(request, set()))
    return f"waiting for {', '.join(late)}" if late else "waiting for the trainer"


def moves_by_request(settings: Settings, registry: Registry, wait_seconds: float) -> RequestedMoves:
    """Make the moves of a machine whose trainer may be elsewhere."""
    return RequestedMoves(
        lambda: _member(settings),
        registry,
        wait_seconds,
        lambda: KafkaModelsTopic(settings.kafka, settings.log.name),
    )


def _member(settings: Settings) -> str:
    return member_name(settings.data_dir) if settings.log.follows else socket.gethostname()


def _request(
    member: str,
    action: Literal["promote", "rollback", "compact"],
    who: str,
    why: str,
    version: str = "",
    event: int = 0,
    seq: int = 0,
) -> Request:
    return Request(
        term=0,
        id=uuid.uuid4().hex,
        action=action,
        who=who,
        why=why,
        member=member,
        at=time.time(),
        version=version,
        event=event,
        seq=seq,
    )

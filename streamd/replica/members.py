"""A member of the log: one machine that follows, and its answers to compaction requests."""

import math
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import structlog

from streamd.errors import CorruptionError
from streamd.eventlog.deletions import deletes_until
from streamd.eventlog.journal.journal import LogState
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.upkeep.holds import (
    Hold,
    ask_to_compact,
    asked_to_compact,
    compact_done,
    end_lease,
    read_holds,
)
from streamd.replica.models import records
from streamd.replica.models.state import ModelsState
from streamd.roles import FOLLOW, HANDOVER, folder_of, make_folder
from streamd.schema import Schema
from streamd.storage import write_durably

logger = structlog.get_logger()
MEMBER = "member"
"""File in the follower's folder with the member's name."""


def known_member(data_dir: Path) -> str | None:
    """Name of a data directory as a member; None if it never followed."""
    try:
        return (folder_of(data_dir, FOLLOW) / MEMBER).read_text()
    except FileNotFoundError:
        return None


def member_name(data_dir: Path) -> str:
    """Name of a data directory as a member, made once: host name and eight hex digits."""
    name = known_member(data_dir)
    if name is None:
        name = f"{socket.gethostname()[:50]}-{uuid.uuid4().hex[:8]}"
        write_durably(make_folder(data_dir, FOLLOW) / MEMBER, name.encode())
    return name


class Member:
    """Joins the members, and answers compaction requests once no role of this machine has files
    with deleted data. Owner: the thread that follows the models topic.

    name: of the member.
    """

    def __init__(
        self,
        data_dir: Path,
        lease_seconds: float,
        append: Callable[[records.Known], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        """Args: lease_seconds: how long the hold of a stopped server here counts. append: to the
        models topic. now: wall time, seconds."""
        self._data_dir = data_dir
        self._lease_seconds = lease_seconds
        self._append = append
        self._now = now
        self.name = member_name(data_dir)
        self._joined = False

    def step(self, state: ModelsState) -> None:
        """Answer the topic's compaction requests, and join if the topic does not have this member.
        Raises: KafkaError."""
        # The topic was read to its end: a member that compaction left out meanwhile joins again.
        self._purge(state)
        if not self._joined or self.name not in state.members:
            self._append(records.Joined(term=state.term, member=self.name, at=self._now()))
            self._joined = True

    def leave(self, state: ModelsState) -> None:
        """Report that this machine stops, so that compaction does not wait for it. Raises:
        KafkaError."""
        if self._joined:
            self._append(records.Left(term=state.term, member=self.name))

    def _purge(self, state: ModelsState) -> None:
        """Let the roles store newer state as far as any request needs it, end expired holds before
        that, and answer."""
        waiting = [r for r in state.compactions() if r.id not in state.released]
        tail = JournalTail.open(self._data_dir) if waiting else None
        # A log that has not reached the deletes yet does not answer. The trainer refuses a request
        # that names an event beyond the log's end.
        shown = LogState(Schema()) if tail is None else tail.state
        waiting = [r for r in waiting if r.event <= shown.num_edges and r.seq <= shown.seq]
        needed = max([state.purged_event, *(r.event for r in waiting)])
        seq = deletes_until(self._data_dir, shown, needed)[1]
        try:
            # The hold of the stored checkpoint has no files here.
            holds = {n: h for n, h in read_holds(self._data_dir).items() if n != HANDOVER}
        except CorruptionError as error:
            logger.error(
                "members_answer_waits",
                error=str(error),
                meaning="a compaction waits for this machine until the file is readable",
            )
            return
        for name, hold in list(holds.items()):
            # A role that restarts must not bring back data that other machines have removed.
            at = _at(hold, needed, seq)
            is_over = min(hold.edge, hold.purged_before_event) < state.purged_event
            lease = -math.inf if is_over else self._lease_seconds
            if at < needed and end_lease(self._data_dir, name, lease, self._now()):
                del holds[name]
                logger.warning("lease_run_out", child=name, held_at_edge=hold.edge)
        at = min((_at(hold, needed, seq) for hold in holds.values()), default=needed)

        # Servers check for the file; while it exists they store newer facts and memory.
        asked = asked_to_compact(self._data_dir)
        if at < needed and asked != needed:
            ask_to_compact(self._data_dir, needed)
        elif at >= needed and asked is not None:
            compact_done(self._data_dir)
        for request in waiting:
            if at >= request.event and self.name not in state.answers.get(request.id, set()):
                self._append(
                    records.Answer(term=state.term, request=request.id, member=self.name, event=at)
                )


def _at(hold: Hold, needed: int, seq: int) -> int:
    """The event before which a role's files contain no deleted data and the role replays nothing.

    needed: event of the compaction that waits. seq: commit of the newest delete before it.
    """
    at = min(hold.edge, hold.purged_before_event)
    # Its files are older than a delete that no event followed.
    return min(at, needed - 1) if at >= needed and not hold.has_purged(needed, seq) else at

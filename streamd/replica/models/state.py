"""The state of the models topic: a function of its records, the same on every machine."""

from collections.abc import Iterator

import msgspec
import structlog

from streamd.errors import KafkaError, ModelsTopicError
from streamd.registry.journal import Move
from streamd.replica.models import records
from streamd.store.versions import StoredVersion
from streamd.telemetry import replica_metrics

logger = structlog.get_logger()
MODELS = "models"
"""Label of the topic in the metric of stray records."""
MAX_OPEN = 1000
"""Maximum number of requests that wait for the trainer, which answers within a second if it
runs."""
MAX_REFUSED = 1000
"""Number of newest refusals that are remembered, for requesters that still wait."""
MAX_MEMBERS = 10_000
KEPT_CHECKPOINTS = 2
"""Number of newest checkpoints that stay in the store: a trainer that has just read the name of the
newest one may still take it after the next one is stored."""


class ModelsState:
    """Folds the records of the models topic. Owner: one thread.

    term: the highest that was claimed; 1, without a claim, is that of trainers of older releases.
    trainer: id of the claim that won it, "" without one. number: of that trainer's newest record.
    checkpoints: the newest in the store, newest last. versions: those that the trainer keeps, by
    name. with_memory: names of those with memory. moves: all, oldest first. windows: lines of the
    history. open: the requests without an answer, by id. refused: id -> reason. members: the
    machines that follow -> wall time, in seconds, since when. answers: id of a compaction request
    -> members that answered. released: compaction requests that wait for no member any more.
    purged_event: the newest event of any of them: no machine may keep data that was deleted before
    it.
    """

    def __init__(self) -> None:
        replica_metrics.stray_records.labels(MODELS)
        self.term = 1
        self.number = 0
        self.trainer = ""
        self.checkpoints: list[records.Checkpointed] = []
        self.versions: dict[str, StoredVersion] = {}
        self.with_memory: set[str] = set()
        self.moves: list[Move] = []
        self.windows: list[str] = []
        self.open: dict[str, records.Request] = {}
        self.refused: dict[str, str] = {}
        self.members: dict[str, float] = {}
        self.answers: dict[str, set[str]] = {}
        self.released: set[str] = set()
        self.purged_event = 0
        self.num_skipped = 0
        """Number of records that could not be read, or were ignored."""
        self.kept_as: dict[str, bool] | None = None
        """Content of the newest record of kept versions, None if a version came since."""
        self.highest_term = 1
        """Of all records, including ignored ones."""
        self._has_missed_claim = False
        self._done: set[str] = set()
        """Requests that were executed or refused: none is executed twice."""

    def take(self, values: list[bytes | None]) -> None:
        """Take the values of the next records; unreadable ones are skipped, logged and counted."""
        for value in values:
            try:
                self._admit(records.decode(value))
            except ModelsTopicError as error:
                self.num_skipped += 1
                replica_metrics.stray_records.labels(MODELS).inc()
                logger.error("models_record_skipped", error=str(error))

    def _admit(self, record: records.Known) -> None:
        """Apply a record. A record of another term than the highest, a claim of a term that is
        already claimed, and a repeated record are ignored."""
        self.highest_term = max(self.highest_term, record.term)
        if isinstance(record, records.Trained):
            self._has_missed_claim |= bool(self.trainer) and record.term > self.term
            if record.term != self.term or record.number <= self.number:
                self._skip(f"record {record.number} of term {record.term}")
                return
            self._apply_trainer_record(record)
            self.number = record.number
        elif isinstance(record, records.Claimed):
            is_next = record.term == self.term + 1
            if not is_next and not (record.anew and record.term > self.term):
                self._skip(f"a claim of term {record.term}")
                return
            if record.anew:
                self._forget_trainers()
            self.term, self.number, self.trainer = record.term, 0, record.id
        else:
            self._apply_member_record(record)

    def _forget_trainers(self) -> None:
        """Forget the records of trainers, which will be sent again, and the members, which will
        join again. Requests stay."""
        self.checkpoints, self.moves, self.windows = [], [], []
        self.versions, self.with_memory, self.kept_as = {}, set(), None
        self.members, self.answers, self.released = {}, {}, set()

    def check_beginning(self) -> None:
        """Check that the topic was read here from its first record. Raises: KafkaError if a trainer
        sends whose claim was not read; then the topic must be opened and read again."""
        if self._has_missed_claim:
            raise KafkaError(
                "The models topic was replaced after it was opened.",
                "none is needed: it will be read again.",
            )

    @property
    def has_begun(self) -> bool:
        """Whether there is a valid record of a trainer; if not, the topic is new, was created again
        or lost its first records."""
        return bool(self.trainer) or self.number > 0

    def _skip(self, what: str) -> None:
        self.num_skipped += 1
        logger.warning(
            "models_record_skipped",
            error=f"{what} is not newer than record {self.number} of term {self.term}",
        )

    def _apply_trainer_record(self, record: records.Known) -> None:
        """Apply a record of the trainer. Raises: ModelsTopicError."""
        match record:
            case records.Version(version=version):
                self.versions[version.name] = version
                self.with_memory.discard(version.name)
                # It has memory besides the weights, or its model has no memory at all.
                if len(version.files) > 1 or len(version.checksums) == 1:
                    self.with_memory.add(version.name)
                self.kept_as = None
            case records.Moved(line=line):
                move = _move(line)
                self.moves.append(move)
                self._close(move.request)
            case records.Scored(index=index, line=line):
                if index > len(self.windows):
                    raise ModelsTopicError(
                        f"Window {index} follows only {len(self.windows)} windows.",
                        "none is needed: the trainer sends the missing ones.",
                    )
                self.windows[index:] = [line]
            case records.Kept(versions=versions):
                self.versions = {n: v for n, v in self.versions.items() if n in versions}
                self.with_memory &= {name for name, whole in versions.items() if whole}
                self.kept_as = versions
            case records.Checkpointed():
                self.checkpoints = [*self.checkpoints, record][-KEPT_CHECKPOINTS:]
            case records.Refused(request=request, reason=reason):
                self._close(request)
                self.refused[request] = reason
                if len(self.refused) > MAX_REFUSED:
                    del self.refused[next(iter(self.refused))]
            case records.Released(request=request, event=event, left=left):
                self.released.add(request)
                self.purged_event = max(self.purged_event, event)
                self.answers.pop(request, None)
                for member in left:
                    self.members.pop(member, None)
            case records.Compacted(request=request):
                self._close(request)
                self.released.discard(request)

    def _apply_member_record(self, record: records.Known) -> None:
        """Apply a record that any member may append."""
        match record:
            case records.Request(id=id):
                if id not in self._done and id not in self.open and len(self.open) < MAX_OPEN:
                    self.open[id] = record
            case records.Joined(member=member, at=at):
                if len(self.members) < MAX_MEMBERS:
                    self.members[member] = at
            case records.Left(member=member):
                self.members.pop(member, None)
            case records.Answer(request=request, member=member, event=event):
                asked = self.open.get(request)
                waits = asked is not None and request not in self.released
                if asked is not None and waits and event >= asked.event:
                    self.answers.setdefault(request, set()).add(member)

    def is_done(self, request: str) -> bool:
        """Whether a request was executed or refused."""
        return request in self._done

    def compactions(self) -> list[records.Request]:
        """The compaction requests that are not done."""
        return [request for request in self.open.values() if request.action == "compact"]

    def _close(self, request: str) -> None:
        if request:
            self.open.pop(request, None)
            self.answers.pop(request, None)
            self._done.add(request)

    @property
    def champion(self) -> str:
        """Name of the champion after the newest move, "" before the first one."""
        return self.moves[-1].champion if self.moves else ""

    @property
    def shadow(self) -> str:
        """Name of the last proven version after the newest move, "" before the first one."""
        return self.moves[-1].shadow if self.moves else ""

    def versions_to_fetch(self) -> Iterator[StoredVersion]:
        """The versions that a machine needs: champion, shadow, then the others, newest first."""
        first = [name for name in dict.fromkeys((self.champion, self.shadow)) if name]
        others = [name for name in reversed(self.versions) if name not in first]
        yield from (self.versions[n] for n in (*first, *others) if n in self.versions)


def _move(line: str) -> Move:
    try:
        return msgspec.json.decode(line, type=Move)
    except msgspec.DecodeError as error:
        raise ModelsTopicError(
            f"A move of the models topic cannot be read: {error}.", "none is needed."
        ) from None

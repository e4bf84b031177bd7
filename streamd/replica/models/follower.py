"""A replica's side of the models topic: `models/` and the history become what the trainer's are."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from streamd.errors import StoreError, VersionError
from streamd.eventlog.journal.tail import JournalTail
from streamd.registry import Registry
from streamd.registry.journal import Move
from streamd.registry.outcome import Refusals
from streamd.registry.registry import read_manifests
from streamd.replica.members import Member
from streamd.replica.models import records
from streamd.replica.models.mark import remove_mark
from streamd.replica.models.state import ModelsState
from streamd.replica.models.topic import ModelsTopic
from streamd.storage import DISK, SCRATCH, append_durably, write_durably
from streamd.store.objects import Store
from streamd.store.versions import MANIFEST, StoredVersion, download_version
from streamd.telemetry import replica_metrics
from streamd.windows.history import FILE as HISTORY

logger = structlog.get_logger()


class _Place(msgspec.Struct):
    edge: int
    seq: int


class ModelsFollower:
    """Copies what the models topic names into a replica's directory. Owner: one thread.

    A version appears whole or not at all, and becomes champion only once it is there.

    state: what the topic says. member: what this machine answers.
    """

    def __init__(
        self,
        data_dir: Path,
        lease_seconds: float,
        registry: Registry,
        topic: ModelsTopic,
        store: Store,
        on_step: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """lease_seconds: how long the retention lease of a server that does not run counts.
        on_step: called with the name of each step as it begins; tests stop there."""
        self._data_dir = data_dir
        self._registry = registry
        self._topic = topic
        self._store = store
        self._on_step = on_step
        self._now = now
        self._settled = (0, -1)
        """Term and number of the newest record when all was here."""
        self._refusals = Refusals(registry)
        self._history = data_dir / HISTORY
        self.state = ModelsState()
        self.member = Member(
            data_dir,
            lease_seconds,
            lambda record: topic.append(records.encode(record)),
            now,
        )
        registry.sweep()

    def step(self, wait_seconds: float = 0.0) -> None:
        """Read the topic to its end, and bring the directory in line with it.

        wait_seconds: how long to wait for a record where there is none.
        Raises: KafkaError; StoreError, OSError where a version cannot be fetched now: another step
        tries again, and what does not need it is done.
        """
        self.state.take(self._topic.read(wait_seconds))
        self._refusals.tell(self.state.refused)
        self.member.step(self.state)
        self.state.check_beginning()
        if (self.state.term, self.state.number) == self._settled:
            replica_metrics.models_followed.set(self._now())
            return

        # Champion and shadow first, then the moves that name them. One that cannot be fetched keeps
        # neither the others nor moves waiting.
        replica_metrics.models_missing.set(self._num_missing())
        named = (self.state.champion, self.state.shadow)
        failed: StoreError | None = None
        for version in list(self.state.wanted()):
            if version.name not in named:
                self._write_moves()
            try:
                self._fetch(version)
            except StoreError as error:
                logger.warning("version_not_fetched", version=version.name, error=str(error))
                failed = failed or error
        self._write_moves()
        self._write_history()
        self._prune()
        replica_metrics.models_missing.set(self._num_missing())
        if failed is not None:
            raise failed
        if not self._num_missing():
            self._settled = self.state.term, self.state.number
            replica_metrics.models_followed.set(self._now())

    def _fetch(self, version: StoredVersion) -> None:
        """Make a version's folder, unless it is there. Raises: StoreError, OSError."""
        if self._is_here(version):
            return
        self._on_step("download")
        self._own()
        begun = time.monotonic()
        fetch_version(
            self._registry,
            self._store,
            version,
            version.name in self.state.with_memory,
            lambda: self._on_step("downloaded"),
        )
        logger.info(
            "version_fetched",
            version=version.name,
            seconds=round(time.monotonic() - begun, 3),
        )

    def _own(self) -> None:
        """Say that versions and history are no longer those of a trainer's checkpoint here."""
        remove_mark(self._data_dir)

    def _is_here(self, version: StoredVersion) -> bool:
        """Whether a version is whole here, with memory where it must have it."""
        try:
            text = (self._registry.folder / version.name / MANIFEST).read_text()
            if text != version.manifest:
                return False
            servable = self._registry.is_servable(self._registry.manifest(version.name))
        except FileNotFoundError:
            return False
        except VersionError:
            # One of a newer release: it is whole, and refused by name where it should serve.
            return True
        return servable or version.name not in self.state.with_memory

    def _write_moves(self) -> None:
        """Make the journal a copy of the trainer's, once the champion it names is whole here."""
        moves = self.state.moves
        if not moves:
            return
        champion = self.state.versions.get(self.state.champion)
        if champion is None or not self._is_here(champion):
            return
        # Servers refuse for good what has an event that the log does not have.
        if not self._log_has(champion):
            return
        # After a restore from a backup, or while a trainer sends all again, the moves here may be
        # newer than the topic's; the topic will catch up.
        here = self._registry.journal.moves()
        if self._goes_back(here):
            return
        if not set(here).issuperset(moves):
            self._on_step("move")
            self._own()
            self._registry.journal.replace(moves)
        self._registry.journal.show(moves[-1])

    def _goes_back(self, here: list[Move]) -> bool:
        """Whether servers already follow a move that is newer than the topic's newest one."""
        try:
            shown = self._registry.journal.shown()
        except FileNotFoundError:
            return False
        newest = self.state.moves[-1]
        return shown in here and newest in here and here.index(newest) < here.index(shown)

    def _log_has(self, version: StoredVersion) -> bool:
        """Whether the log here has come to the place that a version was made at."""
        place = msgspec.json.decode(version.manifest, type=_Place)
        tail = JournalTail.open(self._data_dir)
        return tail is not None and (
            tail.state.seq >= place.seq and tail.state.num_edges >= place.edge
        )

    def _write_history(self) -> None:
        """Make the history a copy of the trainer's: mostly by appending to it."""
        lines = self.state.windows
        try:
            here = self._history.read_text(errors="replace").split("\n")[:-1]
        except FileNotFoundError:
            here = []
        if here[: len(lines)] == lines:
            return
        self._on_step("window")
        self._own()
        self._history.parent.mkdir(parents=True, exist_ok=True)
        if here == lines[: len(here)]:
            text = "".join(f"{line}\n" for line in lines[len(here) :])
            append_durably(self._history, text.encode())
        else:
            write_durably(self._history, "".join(f"{line}\n" for line in lines).encode())

    def _prune(self) -> None:
        """Drop the versions that the trainer dropped, but not before its newest version is here.
        Without a move yet, the trainer may have sent only some of its versions."""
        if self.state.versions and self.state.moves and not self._num_missing():
            self._on_step("prune")
            names = {name: name in self.state.with_memory for name in self.state.versions}
            here = read_manifests(self._registry)
            if any(names.get(m.name) != self._registry.is_servable(m) for m in here):
                self._own()
            self._registry.keep(names)

    def _num_missing(self) -> int:
        """Versions that are not here yet, and moves, as one, that are not."""
        moves = self.state.moves
        behind = bool(moves) and self._registry.shown() != moves[-1]
        return behind + sum(not self._is_here(v) for v in self.state.versions.values())

    def close(self) -> None:
        """Say that this machine stops, and close the connections. Raises: KafkaError."""
        try:
            self.member.leave(self.state)
        finally:
            self._topic.close()


def fetch_version(
    registry: Registry,
    store: Store,
    version: StoredVersion,
    with_memory: bool,
    fetched: Callable[[], None] = lambda: None,
) -> None:
    """Make a version's folder, in the place of one of that name. What versions here have too is
    linked to.

    fetched: called once it is whole, before it has its name. Raises: StoreError, OSError.
    """
    own = {
        checksum: registry.folder / manifest.name / file
        for manifest in read_manifests(registry)
        for file, checksum in manifest.checksums.items()
        if (registry.folder / manifest.name / file).exists()
    }
    # In the way is one without memory, or one of the same name that was learned before.
    beside = registry.folder / f".{version.name}.fetched{SCRATCH}"
    DISK.remove_folder(beside)
    download_version(store, version, beside, with_memory, own)
    fetched()
    registry.put(version.name, beside)

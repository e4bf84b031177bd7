"""A replica's side of the models topic: it copies the trainer's versions, moves and history."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from streamd.errors import StoreError, VersionError
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.layout import WINDOWS
from streamd.eventlog.learned_lines import LearnedLines
from streamd.registry import Registry
from streamd.registry.journal import Move
from streamd.registry.outcome import Refusals
from streamd.registry.registry import read_manifests
from streamd.replica.members import Member
from streamd.replica.models import records
from streamd.replica.models.checkpoint_marker import remove_marker
from streamd.replica.models.state import ModelsState
from streamd.replica.models.topic import ModelsTopic
from streamd.storage import DISK, SCRATCH, append_durably, write_durably
from streamd.store.objects import Store
from streamd.store.versions import MANIFEST, StoredVersion, download_version
from streamd.telemetry import replica_metrics
from streamd.windows.history import FILE as HISTORY

logger = structlog.get_logger()


class _Position(msgspec.Struct):
    edge: int
    seq: int


class ModelsFollower:
    """Copies the content of the models topic into a replica's directory. Owner: one thread.

    A version appears only when it is complete, and becomes champion only after that.

    state: of the topic. member: answers compaction requests for this machine.
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
        """lease_seconds: how long the hold of a stopped server counts. on_step: called with the
        name of each step as it begins; tests stop there."""
        self._data_dir = data_dir
        self._registry = registry
        self._topic = topic
        self._store = store
        self._on_step = on_step
        self._now = now
        self._settled = (0, -1)
        """Term and number of the newest record when the directory last had everything."""
        self._refusals = Refusals(registry)
        self._history = data_dir / HISTORY
        self._windows = LearnedLines(data_dir, WINDOWS, self._history)
        self.state = ModelsState()
        self.member = Member(
            data_dir,
            lease_seconds,
            lambda record: topic.append(records.encode(record)),
            now,
        )
        registry.sweep()

    def step(self, wait_seconds: float = 0.0) -> None:
        """Read the topic to its end, and update the directory to it.

        wait_seconds: how long to wait for a record if there is none. Raises: KafkaError; StoreError
        if a version cannot be fetched now, after all else is updated; OSError. Another step tries
        again.
        """
        self.state.take(self._topic.read(wait_seconds))
        self._refusals.tell(self.state.refused)
        self.member.step(self.state)
        self.state.check_beginning()
        if (self.state.term, self.state.number) == self._settled:
            replica_metrics.models_followed.set(self._now())
            return

        # Champion and shadow first, then the moves that name them. A version that cannot be fetched
        # delays neither other versions nor moves.
        replica_metrics.models_missing.set(self._num_missing())
        named = (self.state.champion, self.state.shadow)
        failed: StoreError | None = None
        for version in list(self.state.versions_to_fetch()):
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
        """Fetch a version's folder, unless it is here. Raises: StoreError, OSError."""
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
        """Remove the checkpoint marker: versions and history here are no longer those of a
        trainer's checkpoint."""
        remove_marker(self._data_dir)

    def _is_here(self, version: StoredVersion) -> bool:
        """Whether a version is complete here, with memory if it needs that."""
        try:
            text = (self._registry.folder / version.name / MANIFEST).read_text()
            if text != version.manifest:
                return False
            servable = self._registry.is_servable(self._registry.manifest(version.name))
        except FileNotFoundError:
            return False
        except VersionError:
            # A newer release made it: it is complete, and servers refuse it by name.
            return True
        return servable or version.name not in self.state.with_memory

    def _can_serve(self, version: StoredVersion) -> bool:
        """Whether a version that is here has its memory."""
        try:
            return self._registry.is_servable(self._registry.manifest(version.name))
        except VersionError:
            # As in `_is_here`.
            return True

    def _write_moves(self) -> None:
        """Copy the trainer's moves to the journal, once the champion that they name is complete
        here."""
        moves = self.state.moves
        if not moves:
            return
        champion = self.state.versions.get(self.state.champion)
        if champion is None or not self._is_here(champion):
            return
        # If the store is slow, newer versions may have taken its memory already: a newer move
        # follows.
        if not self._can_serve(champion):
            return
        # Servers refuse a version for good if the log lacks its event.
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
        """Whether the log here has reached the commit and the event at which a version was made."""
        position = msgspec.json.decode(version.manifest, type=_Position)
        tail = JournalTail.open(self._data_dir)
        return tail is not None and (
            tail.state.seq >= position.seq and tail.state.num_edges >= position.edge
        )

    def _write_history(self) -> None:
        """Copy the history of a trainer of the release before, mostly by appending new lines. Once
        the log has the windows, remove the copy, unless it is of a trainer here and has all of
        them."""
        logged = [line.decode(errors="replace") for line in self._windows.logged()]
        if logged and not self._history.exists():
            return
        lines = logged or self.state.windows
        try:
            here = self._history.read_text(errors="replace").split("\n")[:-1]
        except FileNotFoundError:
            here = []
        if here[: len(lines)] == lines:
            return
        self._on_step("window")
        self._own()
        self._history.parent.mkdir(parents=True, exist_ok=True)
        if logged:
            DISK.unlink(self._history)
        elif here == lines[: len(here)]:
            text = "".join(f"{line}\n" for line in lines[len(here) :])
            append_durably(self._history, text.encode())
        else:
            write_durably(self._history, "".join(f"{line}\n" for line in lines).encode())

    def _prune(self) -> None:
        """Drop the versions that the trainer dropped, once all that it keeps are here. Without a
        move yet, the trainer may have sent only some of its versions."""
        if self.state.versions and self.state.moves and not self._num_missing():
            self._on_step("prune")
            names = {name: name in self.state.with_memory for name in self.state.versions}
            here = read_manifests(self._registry)
            if any(names.get(m.name) != self._registry.is_servable(m) for m in here):
                self._own()
            self._registry.keep(names)

    def _num_missing(self) -> int:
        """Number of versions that are not here yet, and one more if the newest move is not."""
        moves = self.state.moves
        behind = bool(moves) and self._registry.shown() != moves[-1]
        return behind + sum(not self._is_here(v) for v in self.state.versions.values())

    def close(self) -> None:
        """Report that this machine stops, and close the connections. Raises: KafkaError."""
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
    """Fetch a version's folder, which replaces one of the same name. Files that other versions here
    have too are linked.

    fetched: called once the folder is complete, before it gets its name. Raises: StoreError,
    OSError.
    """
    own = {
        checksum: registry.folder / manifest.name / file
        for manifest in read_manifests(registry)
        for file, checksum in manifest.checksums.items()
        if (registry.folder / manifest.name / file).exists()
    }
    # The folder that is replaced lacks memory, or is of an earlier version of this name.
    scratch = registry.folder / f".{version.name}.fetched{SCRATCH}"
    DISK.remove_folder(scratch)
    download_version(store, version, scratch, with_memory, own)
    fetched()
    registry.put(version.name, scratch)

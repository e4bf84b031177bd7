"""The store of model versions: each is written completely and durably before a move names it, and
is read without pickle."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
import structlog
from crc32c import crc32c
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from streamd.errors import VersionError
from streamd.eventlog.delivery import WAIT, Wait
from streamd.eventlog.journal.tail import JournalTail
from streamd.registry.candidate import Candidate, PublishResult, Weights
from streamd.registry.journal import TRAINER, ModelJournal, Move
from streamd.registry.manifest import (
    MEMORY,
    REMOVE,
    Manifest,
    learn_alike,
    manifest_of,
    memory_names,
    read_manifest,
)
from streamd.settings.log import LogSettings
from streamd.settings.paths import Paths
from streamd.settings.tree import Settings
from streamd.storage import DISK, Disk, ImmutableFile, remove_scratch, write_folder_durably
from streamd.tensors import file_checksum

logger = structlog.get_logger()
FOLDER = "models"
ONE_MACHINE = LogSettings()
"""Settings of a log that no other machine has."""
DROPPED = ".dropped"
"""Ending of a version's folder that is being removed, so that a kill leaves no half version."""
NAME = re.compile(r"\d+-\d+(-\d+)?", re.ASCII)
"""<window end in microseconds>-<event id>, and a number where another version has that name."""


@dataclass(frozen=True)
class Version:
    """A loaded version: manifest, weights, and the files of its memory at `manifest.edge`.

    `streamd.models.memory.files` reads and checks them.
    """

    manifest: Manifest
    weights: Weights
    memory: tuple[ImmutableFile, ...]


class Registry:
    """Publishes, names, loads and drops the versions in `models/`.

    Safe to use from several processes, each with its own object.
    """

    def __init__(
        self,
        paths: Paths,
        keep: int,
        log: LogSettings = ONE_MACHINE,
        disk: Disk = DISK,
        wait: Wait = WAIT,
    ) -> None:
        """keep: number of the newest versions to keep. log: whether other machines have the log;
        with a store, a move then serves only after they know it."""
        self._log_folder = paths.log
        self._keep = keep
        self._is_shared = bool(log.name and log.store)
        self._disk = disk
        self.folder = paths.learned / FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        # Other machines get the moves by the models topic.
        is_in_log = paths.log == paths.learned and not log.name
        self.journal = ModelJournal(self.folder, disk, paths.log if is_in_log else None, wait)
        if log.name and not log.follows:
            self.journal.copy_from(paths.log)
        self.passed_over: dict[str, str] = {}
        """Folders that are no versions -> why, as of the last call of `names`."""
        self._manifests: dict[str, tuple[tuple[int, int], Manifest]] = {}
        """Manifests read, by name, with inode and time of change of the file each came from."""

    @classmethod
    def of(cls, settings: Settings, paths: Paths | None = None, wait: Wait = WAIT) -> "Registry":
        """The registry under these settings. paths: by default those of a server."""
        paths = paths or Paths.of(settings, "serve")
        return cls(paths, settings.registry.keep, settings.log, wait=wait)

    def publish(self, candidate: Candidate, incumbent: str | None = None) -> PublishResult:
        """Let the gate judge the candidate, write it, make it champion if it may serve, and drop
        versions that are too old.

        incumbent: a champion with other settings, which serves until this version is proven; None
        if there is no such champion.
        """
        # Do not write a refused candidate: no role could serve or continue it.
        decision = candidate.judged()
        if not decision.promote:
            logger.warning(
                "version_refused", window=candidate.window.end_us, reason=decision.reason
            )
            return PublishResult(candidate.parent, False, decision.reason, refused=True)
        name = self._write(f"{candidate.window.end_us}-{candidate.edge}", candidate)

        # The incumbent goes on serving, so the new version is not named champion yet; so does a
        # better rule until there is a champion.
        serving = incumbent or (candidate.better_rule() if self.journal.last() is None else None)
        if serving is not None:
            self.prune()
            return PublishResult(name, False, f"{decision.reason}; learned beside {serving}")
        # Write it durably before the journal names it: a kill between leaves an unused version.
        self.journal.move("promote", name, TRAINER, decision.reason)
        self.prune()
        return PublishResult(name, True, decision.reason)

    def _write(self, base: str, candidate: Candidate) -> str:
        """Write a version under the name `base`, with a number if another version has that name.

        It does not write the same version twice, as after a stop between writing and naming it.
        Returns: its name.
        """
        weights = save(dict(candidate.weights))
        memory = {MEMORY.format(i): file for i, file in enumerate(candidate.memory())}
        checksums = {"model.safetensors": f"{crc32c(weights):08x}"}
        checksums |= {name: file.checksum for name, file in memory.items()}

        # Find a free name, or the same version under a name it has already.
        name = base
        number = 0
        while (self.folder / name).exists():
            if self._holds(name, checksums["model.safetensors"], candidate):
                return name
            number += 1
            name = f"{base}-{number}"

        # Its files are durable before the rename, so the folder appears complete.
        manifest = msgspec.json.encode(asdict(manifest_of(name, candidate, checksums)))
        files = {"model.safetensors": weights, **memory, "manifest.json": manifest}
        write_folder_durably(self.folder / name, files, self._disk)
        return name

    def _holds(self, name: str, checksum: str, candidate: Candidate) -> bool:
        """Whether the version of this name is complete and has these weights, this position in the
        log and the candidate's settings. Its memory follows from these.

        checksum: of the weights.
        """
        try:
            manifest = self.manifest(name)
            self.check_files(manifest)
        except (VersionError, OSError):
            return False
        # Before format 2 a manifest has no checksums.
        file = "model.safetensors"
        stored = manifest.checksums.get(file) or file_checksum(self.folder / name / file)
        place = manifest.edge, manifest.memory_us, manifest.parent
        same = place == (candidate.edge, candidate.memory_us, candidate.parent)
        same = same and self.is_servable(manifest)
        alike = learn_alike(manifest.fixed_settings, candidate.model, candidate.window_seconds)
        return stored == checksum and same and alike

    def champion(self) -> str | None:
        """Name of the champion by the newest move, from which the trainer continues; None if there
        is none yet. Servers follow `shown`."""
        last = self.journal.last()
        return last.champion if last else None

    def shown(self) -> Move | None:
        """The move that servers follow, None if there is none yet: the newest, or, if several
        machines share the log, the newest that all of them know.

        A trainer may lose its newest moves with its machine; until others know them they do not
        serve.
        """
        if self._is_shared:
            with contextlib.suppress(FileNotFoundError):
                return self.journal.shown()
        return self.journal.last()

    def moved_by_hand(self) -> str | None:
        """The champion if an operator, not the trainer, moved it last."""
        last = self.journal.last()
        # The trainer's own moves are no news to it.
        return last.champion if last and last.who != TRAINER else None

    def names(self) -> list[str]:
        """Names of all versions with a readable manifest, oldest first.

        Other folders are skipped, and each is logged once.
        """
        readable = []
        unreadable = {}
        for path in self.folder.iterdir():
            if not path.is_dir() or path.name.startswith("."):
                continue
            try:
                self.manifest(path.name)
            except VersionError as error:
                unreadable[path.name] = str(error)
                if path.name not in self.passed_over:
                    logger.warning("version_passed_over", folder=str(path), error=str(error))
            else:
                readable.append(path.name)
        self.passed_over = unreadable
        self._manifests = {n: known for n, known in self._manifests.items() if n in readable}
        # A name begins with the window's end, so numbers in order are times in order.
        return sorted(readable, key=lambda n: tuple(int(x) for x in n.split("-")))

    def manifest(self, name: str) -> Manifest:
        """Read a version's manifest. Raises: VersionError if there is no such version, or if this
        release cannot read it."""
        path = self.folder / name / "manifest.json"
        if not NAME.fullmatch(name) or not path.is_file():
            raise VersionError(
                f"There is no version {name!r}.", "pick one of `streamd models list`."
            )
        # A changed file has another stamp; a missing one has none.
        stamp = None
        with contextlib.suppress(OSError):
            stat = path.stat()
            stamp = (stat.st_ino, stat.st_mtime_ns)
        known = self._manifests.get(name)
        if known is not None and known[0] == stamp:
            return known[1]
        manifest = read_manifest(path, name)
        if stamp is not None:
            self._manifests[name] = stamp, manifest
        return manifest

    def load(self, name: str) -> Version:
        """Load the weights of a version, and name the files of its memory.

        Raises: VersionError if there is none, it has no memory, or it is damaged or not finite.
        """
        manifest = self.manifest(name)
        manifest.model_settings()
        if not self.is_servable(manifest):
            raise VersionError(
                f"Version {name} is kept without its memory, so it cannot serve.",
                "pick one of `streamd models list` that has its memory.",
            )

        # Check the checksums first: damaged tensors might still load.
        try:
            self.check_files(manifest, ["model.safetensors"])
            weights = load_file(self.folder / name / "model.safetensors")
        except (SafetensorError, OSError) as error:
            raise VersionError(f"Version {name} cannot be read: {error}.", REMOVE) from None

        # A version that is not finite would make every answer NaN.
        for part, array in weights.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise VersionError(
                    f"Version {name} is not finite in {part}.", "promote another one."
                )
        files = [
            ImmutableFile(self.folder / name / file, manifest.checksums.get(file, ""))
            for file in memory_names(manifest)
        ]
        return Version(manifest, weights, tuple(files))

    def is_servable(self, manifest: Manifest) -> bool:
        """Whether a version still has its memory; only champion, shadow and the newest keep it."""
        # The first file is removed first.
        names = memory_names(manifest)
        return not names or (self.folder / manifest.name / names[0]).exists()

    def check_files(self, manifest: Manifest, names: Iterable[str] | None = None) -> None:
        """Check files of a version, by default all that it must have, against the manifest's
        checksums.

        Raises: VersionError if one differs; OSError if one is missing.
        """
        if names is None:
            memory = memory_names(manifest) if not self.is_servable(manifest) else []
            names = [name for name in manifest.checksums if name not in memory]
        for file in names:
            checksum = manifest.checksums.get(file)
            if checksum and file_checksum(self.folder / manifest.name / file) != checksum:
                raise VersionError(
                    f"{file} of version {manifest.name} differs from its checksum.", REMOVE
                )

    def sweep(self) -> None:
        """Finish the moves of a process that was killed, and remove the partial files of one that
        was killed while it wrote or dropped a version. The trainer calls it at its start."""
        # The lock is given once the log has all moves.
        with self.journal.lock:
            pass
        # Partly written folders end in .tmp, partly dropped ones in DROPPED; both begin with a dot.
        remove_scratch(self.folder, self._disk)
        for path in self.folder.glob(f".*{DROPPED}"):
            self._disk.remove_folder(path)

    def promote(self, name: str, who: str, why: str, request: str | None = None) -> Move:
        """Make a version champion by hand. request: as of `ModelJournal.move`.

        Raises: VersionError if there is none, it is damaged, or the log does not hold its position.
        """
        # Under the lock, so that the trainer does not drop its memory meanwhile.
        with self.journal.lock:
            self._check_servable(name)
            return self.journal.move("promote", name, who, why, request=request)

    def shadow(self) -> str | None:
        """Name of the last proven version, None if there is none yet."""
        last = self.journal.last()
        return last.shadow if last else None

    def prove(self, name: str, why: str) -> None:
        """Make a version the shadow: one that was proven, the first one under its settings, or the
        champion if the shadow is lost or may hold deleted data."""
        # Under the lock, so that the champion is not another one by now.
        with self.journal.lock:
            champion = self.champion()
            assert champion is not None
            self.journal.move("prove", champion, TRAINER, why, shadow=name)

    def rollback(self, who: str, why: str, request: str | None = None) -> Move:
        """Make the shadow, which is the last proven version, champion. request: as of
        `ModelJournal.move`.

        Raises: VersionError if it is champion already, damaged, or the log does not hold its
        position.
        """
        # Under the lock, so that the trainer does not drop this one for another meanwhile.
        with self.journal.lock:
            last = self.journal.last()
            if last is None or last.shadow == last.champion:
                raise VersionError(
                    "There is no version to roll back to.", "wait until a second one is promoted."
                )
            self._check_servable(last.shadow)
            return self.journal.move("rollback", last.shadow, who, why, request=request)

    def _check_servable(self, name: str) -> None:
        """Check that a version can be loaded and that the log holds its position. Raises:
        VersionError."""
        manifest = self.load(name).manifest
        try:
            self.check_files(manifest)
        except OSError as error:
            raise VersionError(f"Version {name} cannot be read: {error}.", REMOVE) from None
        edge = manifest.edge
        # A server replays from the version's position, so the log must still hold what follows it.
        tail = JournalTail.open(self._log_folder)
        if tail is not None and not tail.state.first_edge <= edge <= tail.state.num_edges:
            raise VersionError(
                f"Version {name} is at edge {edge}, the log holds [{tail.state.first_edge}, "
                f"{tail.state.num_edges}).",
                "pick another one of `streamd models list`.",
            )

    def prune(self) -> None:
        """Drop all but the newest `registry.keep` versions, and champion and shadow.

        Of those kept, champion, shadow and the newest keep their memory, which is as large as all
        nodes together; of the others the manifest remains as a record. The newest one's parent
        keeps its memory too: it may be proven already, although the journal does not have it yet.
        """
        with self.journal.lock:
            made = sorted(read_manifests(self), key=lambda m: m.created)
            old = made[: -self._keep]
            self._drop([m.name for m in old])
            kept = self._named() | {name for m in made[-1:] for name in (m.name, m.parent)}
            for manifest in made[len(old) :]:
                if manifest.name not in kept:
                    self._drop_memory(manifest)

    def keep(self, versions: Mapping[str, bool]) -> None:
        """Drop all versions but these, and champion and shadow, as another machine's trainer did.

        versions: name -> whether it keeps its memory.
        """
        with self.journal.lock:
            named = self._named()
            self._drop([name for name in self.names() if name not in versions])
            for manifest in read_manifests(self):
                if manifest.name not in named and not versions.get(manifest.name, True):
                    self._drop_memory(manifest)

    def _drop_memory(self, manifest: Manifest) -> None:
        files = [self.folder / manifest.name / name for name in memory_names(manifest)]
        # Without the last file, all are gone already.
        for file in files if files and files[-1].exists() else ():
            self._disk.unlink(file)

    def put(self, name: str, folder: Path) -> None:
        """Rename a durable folder to a version's name, and replace an older version of that
        name."""
        with self.journal.lock:
            if (self.folder / name).exists():
                self._remove(name)
            self._disk.replace(folder, self.folder / name)
            self._disk.sync_folder(self.folder)

    def drop_before(self, edge: int) -> None:
        """Drop the versions whose window began before an event id, but not champion and shadow:
        their messages may hold features of edges that a delete just before that event hides."""
        with self.journal.lock:
            stale = {m.name for m in read_manifests(self) if m.first_edge < edge} - self._named()
            self._drop(sorted(stale))
        if stale:
            why = "they may contain deleted data; champion and shadow follow once they are replaced"
            logger.warning("versions_dropped", versions=sorted(stale), meaning=why)

    def named_windows(self) -> list[tuple[int, int]]:
        """The event ids [first, end) of the windows of champion and shadow."""
        named = self._named()
        return [(m.first_edge, m.edge) for m in read_manifests(self) if m.name in named]

    def _named(self) -> set[str]:
        """Champion and shadow, both as the trainer and as servers have them."""
        moves = (self.journal.last(), self.shown())
        return {name for move in moves if move for name in (move.champion, move.shadow)}

    def _drop(self, names: list[str]) -> None:
        for name in sorted(set(names) - self._named()):
            self._remove(name)

    def _remove(self, name: str) -> None:
        # Rename it first, so that every visible version is complete.
        scratch = self.folder / f".{name}{DROPPED}"
        self._disk.remove_folder(scratch)
        self._disk.replace(self.folder / name, scratch)
        self._disk.remove_folder(scratch)


def promote_again(registry: Registry, why: str) -> Move:
    """Append a move that names the present champion again, for machines that know newer moves than
    this one."""
    with registry.journal.lock:
        champion = registry.champion()
        assert champion is not None
        return registry.journal.move("promote", champion, TRAINER, why, request="")


def find_damage(registry: Registry) -> Iterator[tuple[str, str]]:
    """Yield (name, error) for each damaged version, for `streamd verify`."""
    for path in sorted(registry.folder.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            try:
                registry.check_files(registry.manifest(path.name))
            except (VersionError, OSError) as error:
                yield path.name, str(error)


def read_manifests(registry: Registry) -> list[Manifest]:
    """Read the manifests of all complete versions, oldest first; one that is dropped meanwhile is
    skipped."""
    out = []
    for name in registry.names():
        try:
            out.append(registry.manifest(name))
        except VersionError:
            continue
    return out

"""The store of model versions: each is written completely and durably before a move names it, and
is read without pickle."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import structlog
from crc32c import crc32c
from safetensors.numpy import save

from streamd.errors import VersionError
from streamd.eventlog.delivery import WAIT, Wait
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.layout import VERSIONS
from streamd.registry.candidate import Candidate, PublishResult
from streamd.registry.journal import TRAINER, ModelJournal, Move
from streamd.registry.manifest import (
    MEMORY,
    REMOVE,
    Manifest,
    learn_alike,
    manifest_of,
    memory_names,
)
from streamd.registry.stored_versions import StoredVersions
from streamd.registry.trial_arms import arms_with_versions, find_arm_versions
from streamd.registry.version_lines import (
    LoggedVersion,
    VersionLine,
    VersionLines,
    is_there,
    removals,
)
from streamd.settings.log import LogSettings
from streamd.settings.paths import Paths
from streamd.settings.tree import Settings
from streamd.storage import DISK, Disk, remove_scratch, write_folder_durably
from streamd.tensors import file_checksum

logger = structlog.get_logger()
FOLDER = "models"
ONE_MACHINE = LogSettings()
"""Settings of a log that no other machine has."""
DROPPED = ".dropped"
"""Ending of a version's folder that is being removed, so that a kill leaves no half version."""


class Registry(StoredVersions):
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
        arms: Iterable[str] = (),
    ) -> None:
        """keep: number of the newest versions to keep. log: whether other machines have the log;
        with a store, a move then serves only after they know it. arms: of the trial that runs."""
        self._log_folder = paths.log
        self._keep = keep
        self._arms = arms_with_versions(arms)
        self._is_shared = bool(log.name and log.store)
        self._disk = disk
        super().__init__(paths.learned / FOLDER)
        # Other machines get the moves by the models topic.
        is_in_log = paths.log == paths.learned and not log.name
        self.journal = ModelJournal(self.folder, disk, paths.log if is_in_log else None, wait)
        # Versions have lines only in a log, so this local file never exists.
        lines = self.journal.lines_of(VERSIONS, self.folder / ".versions")
        self.version_lines = VersionLines(lines)
        if log.name and not log.follows:
            self.journal.copy_from(paths.log)

    @classmethod
    def of(cls, settings: Settings, paths: Paths | None = None, wait: Wait = WAIT) -> "Registry":
        """The registry under these settings. paths: by default those of a server."""
        paths = paths or Paths.of(settings, "serve")
        return cls(
            paths,
            settings.registry.keep,
            settings.log,
            wait=wait,
            arms=settings.trials.arms,
        )

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
        manifest = self.manifest(name)
        if serving is not None:
            self._log_versions([manifest])
            self.prune()
            return PublishResult(name, False, f"{decision.reason}; learned beside {serving}")
        # Write it durably before the journal names it: a kill between leaves an unused version,
        # which the repeated publication finds. The versions that it makes too old are removed in
        # the same commit.
        with self.journal.lock:
            last = self.journal.last()
            named = {name, last.shadow if last else name}
            old = self._too_old(named | self._named() if self._is_shared else named)
            lines = self.version_lines.beside_a_move(manifest, old.lines)
            self.journal.move("promote", name, TRAINER, decision.reason, others=lines)
            self._log_versions([manifest])
            self.prune()
        return PublishResult(name, True, decision.reason)

    def _log_versions(self, manifests: Sequence[Manifest]) -> None:
        """Append the lines of versions that the log lacks."""
        with self.journal.lock:
            known = self.version_lines.versions()
            lines = [VersionLine.of(m) for m in manifests if m.name not in known]
            self.version_lines.append(lines)

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

    def sweep(self) -> None:
        """Finish the moves of a process that was killed, and remove the partial files of one that
        was killed while it wrote or dropped a version. The trainer calls it at its start."""
        # Versions of an older release, and of the time with other machines, have no lines yet.
        has_old_moves = (self.folder / "journal.jsonl").exists()
        with self.journal.lock:
            if has_old_moves:
                gone = [name for name, _ in self.lost_versions()]
                self.version_lines.append(removals(gone, "version"))
            else:
                self._finish_removals()
            self._log_versions(read_manifests(self))
        for name, _ in self.lost_versions():
            logger.error("version_lost", version=name, meaning="its folder is not there any more")
        # Partly written folders end in .tmp, partly dropped ones in DROPPED; both begin with a dot.
        remove_scratch(self.folder, self._disk)
        for path in self.folder.glob(f".*{DROPPED}"):
            self._disk.remove_folder(path)

    def _finish_removals(self) -> None:
        """Remove the bytes that a killed process left, although the log has their removal."""
        versions = self.version_lines.versions()
        self._drop(sorted(self.version_lines.removed.intersection(self.names())))
        for manifest in read_manifests(self):
            if manifest.name in versions and not versions[manifest.name].has_memory:
                self._drop_memory(manifest)

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
        """Drop all but the newest `registry.keep` versions, champion and shadow, and those of a
        trial's arms.

        Of those kept, champion, shadow, the newest and those of arms keep their memory, which is as
        large as all nodes together; of the others the manifest remains as a record. The newest
        one's parent keeps its memory too: it may be proven already, although the journal does not
        have it yet.
        """
        with self.journal.lock:
            old = self._too_old(self._named())
            # The log first: bytes that are missing without a line count as lost.
            self.version_lines.append(old.lines)
            self._drop(old.whole)
            for manifest in old.memory:
                self._drop_memory(manifest)

    def _too_old(self, named: set[str]) -> "_TooOld":
        """Find the versions that `prune` drops. named: those that stay, whatever their age,
        together with those of arms."""
        made = sorted(read_manifests(self), key=lambda m: m.created)
        newest = made[-self._keep :]
        for champion in (*named, *(m.name for m in made[-1:])) if self._arms else ():
            named = named | set(find_arm_versions(self._arms, made, champion).values())
        kept = named | {name for m in made[-1:] for name in (m.name, m.parent)}
        whole = [m.name for m in made[: -self._keep] if m.name not in named]
        memory = [m for m in newest if m.name not in kept]
        # A lost one is forgotten once it would have been removed anyway.
        oldest = min((m.created for m in newest), default=math.inf)
        lost = [n for n, one in self.lost_versions() if one.created < oldest]
        # The log may have a removal already, with the move that caused it.
        logged = self.version_lines.versions()
        lines = removals([name for name in (*whole, *lost) if name in logged], "version")
        bare = [m.name for m in memory if m.name in logged and logged[m.name].has_memory]
        return _TooOld(whole, memory, lines + removals(bare, "memory"))

    def arm_versions(self, champion: str) -> Mapping[str, str]:
        """The version of each arm of the trial that has one, by name, at a champion."""
        return find_arm_versions(self._arms, read_manifests(self), champion)

    def lost_versions(self) -> list[tuple[str, LoggedVersion]]:
        """The versions with missing folders, although the log has no removal of them."""
        logged = self.version_lines.versions().items()
        missing = [(name, one) for name, one in logged if not is_there(self.folder, name)]
        # The trainer may have removed one meanwhile, with a line.
        logged_now = self.version_lines.versions() if missing else {}
        return [(name, one) for name, one in missing if name in logged_now]

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
            self.version_lines.append(removals(sorted(stale), "version"))
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


@dataclass(frozen=True, slots=True)
class _TooOld:
    """Versions that are too old. whole: names of those that go. memory: those that lose their
    memory. lines: of the removals that the log lacks."""

    whole: list[str]
    memory: list[Manifest]
    lines: list[VersionLine]


def promote_again(registry: Registry, why: str) -> Move:
    """Append a move that names the present champion again, for machines that know newer moves than
    this one."""
    with registry.journal.lock:
        champion = registry.champion()
        assert champion is not None
        return registry.journal.move("promote", champion, TRAINER, why, request="")


def find_damage(registry: Registry) -> Iterator[tuple[str, str]]:
    """Yield (name, error) for each damaged or lost version, for `streamd verify`."""
    for name, _ in registry.lost_versions():
        yield name, "its folder is missing, and the log has no removal of it"
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

"""The store of versions: written whole and durable, then named; read without pickle."""

import shutil
import time
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import structlog
from safetensors.torch import load_file, save
from torch import Tensor

from streamd import __version__
from streamd.errors import VersionError
from streamd.events import Schema
from streamd.models.candidate import Candidate, Outcome, StoredVersion
from streamd.registry.gate import decide
from streamd.registry.journal import ModelJournal, Move
from streamd.segments.tail import JournalTail
from streamd.settings import ModelSettings, Settings
from streamd.storage import write_folder_durably

log = structlog.get_logger()
FOLDER = "models"


@dataclass(frozen=True)
class Manifest:
    """What a version is: where in the log it stands, how it was made, how it scored. Times in microseconds.

    tail: MRR before and after on the held-out events, None where the window was too small to hold any out.
    """

    name: str
    window_start_us: int
    window_end_us: int
    first_edge: int
    edge: int
    seq: int
    memory_us: int
    parent: str
    model: dict[str, Any]
    schema: dict[str, int]
    window_seconds: int
    training: dict[str, Any]
    scores: dict[str, dict[str, float]]
    tail: dict[str, float | None]
    loss: float
    code: str
    created: float

    def model_settings(self) -> ModelSettings:
        return ModelSettings(**self.model)

    def log_schema(self) -> Schema:
        return Schema(**self.schema)


@dataclass(frozen=True)
class Version:
    """A loaded version: manifest, weights, and memory at `manifest.edge`."""

    manifest: Manifest
    weights: dict[str, Tensor]
    memory: dict[str, Tensor]


class Registry:
    """`models/`: safe to use from several processes, each with its own object."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.folder = settings.data_dir / FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        self.journal = ModelJournal(self.folder)

    def publish(self, candidate: Candidate, beside: str | None = None) -> Outcome:
        """Let the gate judge the candidate, write it and name it champion if it may serve, drop what is too old.

        beside: the champion of other settings that goes on serving until this one is proven."""
        learned = candidate.learned
        decision = decide(learned.finite, learned.tail_before, learned.tail_after, learned.num_tail)
        if not decision.promote:
            log.warning("version_refused", window=candidate.window.end_us, reason=decision.reason)
            return Outcome(candidate.parent, False, decision.reason, refused=True)
        name = self._free_name(f"{candidate.window.end_us}-{candidate.edge}")
        self._write(name, candidate)
        if beside is not None:
            self.prune()
            return Outcome(name, False, f"{decision.reason}; learned beside {beside}")
        self.journal.move("promote", name, "trainer", decision.reason)
        self.prune()
        return Outcome(name, True, decision.reason)

    def _free_name(self, base: str) -> str:
        """That name, or with a number behind it where a version of other settings has it."""
        own = self._settings.model.model_dump(mode="json"), self._settings.windows.width_seconds
        name, number = base, 0
        while (self.folder / name).exists() and (m := self.manifest(name)) and (m.model, m.window_seconds) != own:
            number += 1
            name = f"{base}-{number}"
        return name

    def _write(self, name: str, candidate: Candidate) -> None:
        s, learned = self._settings, candidate.learned
        schema = s.stream.model_dump(include={"edge_feature_dim", "node_feature_dim", "label_dim"})
        manifest = Manifest(
            name, candidate.window.start_us, candidate.window.end_us, candidate.window.first_edge, candidate.edge,
            candidate.seq, candidate.memory_us, candidate.parent, s.model.model_dump(mode="json"), schema,
            s.windows.width_seconds, s.training.model_dump(mode="json"), candidate.scores,
            {"before": learned.tail_before, "after": learned.tail_after, "events": learned.num_tail}, learned.loss,
            __version__, time.time())
        write_folder_durably(self.folder / name, {
            "model.safetensors": save({k: v.contiguous() for k, v in candidate.weights.items()}),
            "state.safetensors": save({k: v.contiguous() for k, v in candidate.memory.items()}),
            "manifest.json": msgspec.json.encode(asdict(manifest))})

    def champion(self) -> str | None:
        """Name of the version that serves, None before there is one."""
        last = self.journal.last()
        return last.champion if last else None

    def moved_by_hand(self) -> str | None:
        """The champion where it was last moved by someone other than the trainer."""
        last = self.journal.last()
        return last.champion if last and last.who != "trainer" else None

    def names(self) -> list[str]:
        """All whole versions, oldest first."""
        found = [p.name for p in self.folder.iterdir() if p.is_dir() and (p / "manifest.json").exists()
                 and not p.name.startswith(".")]
        return sorted(found, key=lambda n: tuple(int(x) for x in n.split("-")))

    def manifest(self, name: str) -> Manifest:
        """Raises: VersionError where there is no such version."""
        path = self.folder / name / "manifest.json"
        if name in (".", "..") or "/" in name or name.startswith(".") or not path.is_file():
            raise VersionError(f"There is no version {name!r}.", "pick one of `streamd models list`.")
        return msgspec.json.decode(path.read_bytes(), type=Manifest)

    def load(self, name: str) -> Version:
        """Weights and memory of a version. Raises: VersionError."""
        manifest = self.manifest(name)
        folder = self.folder / name
        return Version(manifest, load_file(folder / "model.safetensors"), load_file(folder / "state.safetensors"))

    def stored(self, name: str) -> StoredVersion:
        """A version as training takes it up again. Raises: VersionError."""
        version = self.load(name)
        m = version.manifest
        return StoredVersion(version.weights, version.memory, m.edge, m.memory_us, m.model, m.window_seconds)

    def promote(self, name: str, who: str, why: str) -> Move:
        """Make a version champion by hand. Raises: VersionError, also where the log no longer holds its position."""
        self._check_position(name)
        return self.journal.move("promote", name, who, why)

    def shadow(self) -> str | None:
        """Name of the last proven version, None before there is one."""
        last = self.journal.last()
        return last.shadow if last else None

    def prove(self, name: str, why: str) -> None:
        """Make a version, proven by `streamd.training.shadow.judge`, the shadow."""
        champion = self.champion()
        assert champion is not None
        self.journal.move("prove", champion, "trainer", why, shadow=name)

    def rollback(self, who: str, why: str) -> Move:
        """Make the shadow, the last proven version, champion. Raises: VersionError where it is champion already."""
        last = self.journal.last()
        if last is None or last.shadow == last.champion:
            raise VersionError("There is no version to roll back to.", "wait until a second one is promoted.")
        self._check_position(last.shadow)
        return self.journal.move("rollback", last.shadow, who, why)

    def _check_position(self, name: str) -> None:
        edge, tail = self.manifest(name).edge, JournalTail(self._settings.data_dir)
        tail.refresh()
        if tail.state is not None and not tail.state.first_edge <= edge <= tail.state.num_edges:
            raise VersionError(f"Version {name} stands at edge {edge}, the log holds [{tail.state.first_edge}, "
                               f"{tail.state.num_edges}).", "pick another one of `streamd models list`.")

    def prune(self) -> None:
        """Drop versions beyond the last `registry.keep` made, never the champion or the shadow."""
        made = sorted(read_manifests(self), key=lambda m: m.created)
        self._drop([m.name for m in made[: -self._settings.registry.keep]])

    def drop_before(self, edge: int) -> None:
        """Drop versions whose window began before an edge, never the champion or the shadow.

        The pending messages of such a version may hold features of edges that a delete just before `edge` hides.
        """
        self._drop([m.name for m in read_manifests(self) if m.first_edge < edge])

    def named_windows(self) -> list[tuple[int, int]]:
        """First edge and end of the windows of champion and shadow."""
        return [(m.first_edge, m.edge) for m in read_manifests(self) if m.name in self._named()]

    def _named(self) -> set[str]:
        last = self.journal.last()
        return {last.champion, last.shadow} if last else set()

    def _drop(self, names: list[str]) -> None:
        named = self._named()
        for name in names:
            if name not in named:
                scratch = self.folder / f".{name}.dropped"
                (self.folder / name).rename(scratch)
                shutil.rmtree(scratch)


def read_manifests(registry: Registry) -> list[Manifest]:
    """Manifests of all whole versions, oldest first; one pruned meanwhile is left out."""
    out = []
    for name in registry.names():
        try:
            out.append(registry.manifest(name))
        except VersionError:
            continue
    return out


"""The nightly baseline (`training.nightly_twin`): the live model as it was at the last midnight UTC
of event time, with weights, memory, facts and neighbors. It scores a sample of each window's
events and is never trained, so the difference shows the value of continuous training.

It is stored as a folder `train/nightly/<event id>`: `weights.safetensors`, the files of its memory,
`facts.safetensors` with one more file for each of several edge sets, and `twin.json`. Facts are
mapped from there: they occupy the file cache, not memory.
"""

import copy
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import structlog
import torch
from crc32c import crc32c
from safetensors.torch import load, save

from streamd.errors import CorruptionError, VersionError
from streamd.eventlog.reader import LogReader
from streamd.events import Float32, Int64
from streamd.gpu import memory_for
from streamd.graph.facts.set_facts import SetFacts, set_file
from streamd.graph.negatives import SCORED
from streamd.graph.ranking import among_candidates, is_candidate
from streamd.models import LinkModel, Memory
from streamd.models.memory.files import read_memory
from streamd.registry.manifest import MEMORY
from streamd.schema import Schema
from streamd.storage import ImmutableFile, remove_scratch, write_folder_durably
from streamd.telemetry import metrics
from streamd.tensors import FORMAT
from streamd.training.learner import Learner
from streamd.training.learning_settings import LearningSettings
from streamd.training.recorder import Chunk, Recorder
from streamd.windows import Window

logger = structlog.get_logger()
FOLDER = "nightly"
"""The baseline's folder, within the trainer's."""
FACTS = "facts.safetensors"
WEIGHTS = "weights.safetensors"
DAY_US = 86_400_000_000
"""A day in microseconds."""
MAX_EVENTS = 2_000
"""The most events of a window that the baseline scores: enough for a standard error of .01 in MRR,
few enough to cost a fraction of the training on them."""
SAMPLE_SEED = 4
"""Separates the sample's seed from those of a window's other draws."""
StoreMemory = Callable[[Memory], tuple[ImmutableFile, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class NightlyFile:
    """The content of `twin.json`.

    edge: id of the first event after midnight. window_edge: first event of the last window that was
    trained on.
    memory_us: event time that memory has reached, microseconds. schema: the log's at that time.
    checksums: CRC32C of weights and of the files of the memory, by name.
    """

    edge: int
    window_edge: int
    memory_us: int
    schema: dict[str, Any]
    checksums: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class NightlyBaseline:
    """The state of one midnight; immutable."""

    about: NightlyFile
    model: LinkModel
    memory: Memory
    facts: SetFacts


class NightlyScores(NamedTuple):
    """row_N: int64, indices of the window's scored events that the baseline scored.
    score_NC: float32[N, 101], its logits of them.
    """

    row_N: Int64
    score_NC: Float32


class Nightly:
    """Makes a baseline at each midnight, scores windows by it, and keeps it over restarts.

    Owner: the trainer's thread. With several ranks there is none: each would need the facts of that
    night, and rank 0 alone writes files.
    """

    def __init__(
        self,
        settings: LearningSettings,
        log: LogReader,
        learner: Learner,
        recorder: Recorder,
        folder: Path,
        store_memory: StoreMemory,
    ) -> None:
        """folder: the trainer's.
        store_memory: writes a memory of the learner's pool, as `MemoryFiles.store` does.
        """
        self._settings = settings
        self._log = log
        self._learner = learner
        self._recorder = recorder
        self._folder = folder / FOLDER
        self._store_memory = store_memory
        self._baseline: NightlyBaseline | None = None
        self._seconds = 0.0
        self._candidates: list[Int64] = []
        """int64[E, 101] for each scored chunk of the window."""
        self._is_on = settings.training.nightly_twin
        if self._is_on and learner.ranks.size > 1:
            self._is_on = False
            if learner.ranks.is_first:
                logger.warning(
                    "nightly_baseline_off",
                    reason="several training.ranks share graph and memory",
                    meaning="windows have no scores of the nightly baseline",
                )

    @property
    def name(self) -> str:
        """Name of the baseline's folder, for checkpoints; "" if there is none."""
        return f"{self._baseline.about.edge:020d}" if self._baseline else ""

    # While windows are scored

    def enter(self, window: Window, window_edge: int) -> None:
        """Begin a window. At the first window of a day, the live state becomes the new baseline.

        window_edge: first event of the windows trained on last. Graph, facts and memory must be at
        the window's start.
        """
        self._candidates = []
        if not self._is_on or not self._learner.num_learned or not self._begins_day(window):
            return
        begun = time.perf_counter()
        self._baseline = None
        try:
            self._baseline = self._make(window.first_edge, window_edge)
        except OSError as error:
            # A full disk must not stop the training.
            logger.error(
                "nightly_baseline_not_stored",
                error=str(error),
                meaning="the windows of this day have no scores of the nightly baseline",
            )
        self._report()
        self._seconds += time.perf_counter() - begun

    def note(self, chunk: Chunk) -> None:
        """Keep the candidates of a chunk of the window, if it has scored events."""
        if self._baseline is not None and chunk.score is not None:
            roots = chunk.score.node_M[chunk.score.hops[0].root_U]
            self._candidates.append(roots[chunk.score.candidate_EC[:, SCORED]].numpy())

    @torch.no_grad()
    @memory_for("scoring a window by the nightly baseline")
    def score(self, event_E: Int64, on_chunk: Callable[[], None]) -> NightlyScores | None:
        """Score a seeded sample of the window's scored events.

        event_E: all of them, in the order of the chunks.
        on_chunk: called after each batch, to keep the heartbeat alive.

        Returns: None if there is no baseline.
        """
        if self._baseline is None or not len(event_E):
            return None
        begun = time.perf_counter()
        row_N = np.arange(len(event_E))
        if len(row_N) > MAX_EVENTS:
            seed = [self._settings.training.seed, SAMPLE_SEED, int(event_E[0])]
            rng = np.random.default_rng(seed)
            row_N = np.sort(rng.choice(row_N, MAX_EVENTS, replace=False))
        candidate_NC = np.concatenate(self._candidates)[row_N]

        # In batches of the size of chunks, like live scores.
        step = self._settings.model.memory_chunk
        parts = []
        for at in range(0, len(row_N), step):
            own = slice(at, at + step)
            parts.append(self._logits(event_E[row_N[own]], candidate_NC[own]))
            on_chunk()
        self._seconds += time.perf_counter() - begun
        score_NC = among_candidates(np.concatenate(parts), is_candidate(candidate_NC))
        return NightlyScores(row_N, score_NC)

    def take_seconds(self) -> float:
        """Wall time of `enter` and `score` since the last call."""
        seconds = self._seconds
        self._seconds = 0.0
        return seconds

    def _logits(self, event_E: Int64, candidate_EC: Int64) -> Float32:
        """The baseline's logits of events and their candidates, float32[E, C]."""
        baseline = self._baseline
        assert baseline is not None
        src_E = self._log.gather("src", event_E)
        sets_E = self._log.edge_sets_of(event_E)
        facts = baseline.facts.compute(src_E, self._log.time_of(event_E), candidate_EC, sets_E)

        # Retention may have dropped neighbors since.
        before = max(baseline.about.edge, self._log.first_edge)
        inputs = self._recorder.inputs_before(event_E, facts, src_E, candidate_EC, before)
        updated_PD = baseline.model.updated(baseline.memory)
        return self._learner.transfer.logits(baseline.model, baseline.memory, inputs, updated_PD)

    def _begins_day(self, window: Window) -> bool:
        """Whether the event before a window is on an earlier day."""
        if window.first_edge <= self._log.first_edge:
            return False
        before = int(self._log.time_of(np.array([window.first_edge - 1]))[0])
        return before // DAY_US < window.start_us // DAY_US

    # Creation and restart

    def _make(self, edge: int, window_edge: int) -> NightlyBaseline:
        """Store the live state as a baseline. Raises: OSError.

        1. Save the facts to files.
        2. Write the folder with links to them, whole or not at all.
        3. Remove the files of step 1: the folder's links keep them.
        """
        learner = self._learner
        live = self._recorder.live
        assert live.edge == edge == learner.memory.edge, "a baseline is made between two windows"
        home = self._folder
        home.mkdir(parents=True, exist_ok=True)
        remove_scratch(home)

        # 1. Facts, as files to which the folder links.
        path = home / FACTS
        live.facts.save(path)
        facts = [path, *(set_file(path, n) for n in range(len(live.facts.per_set)))]
        weights = save({k: v.contiguous() for k, v in learner.model.state_dict().items()})
        memory = {MEMORY.format(i): f for i, f in enumerate(self._store_memory(learner.memory))}
        about = NightlyFile(
            edge=edge,
            window_edge=window_edge,
            memory_us=learner.memory.now_us,
            schema=learner.model.schema.fields(),
            checksums={WEIGHTS: f"{crc32c(weights):08x}"}
            | {name: file.checksum for name, file in memory.items()},
        )

        # 2. The folder. One of the same night is from a step that a stop interrupted.
        folder = home / f"{edge:020d}"
        shutil.rmtree(folder, ignore_errors=True)
        write_folder_durably(
            folder,
            {
                WEIGHTS: weights,
                **memory,
                **{one.name: ImmutableFile(one, "") for one in facts},
                "twin.json": msgspec.json.encode(asdict(about)),
            },
        )
        # 3. The files outside the folder.
        for one in facts:
            one.unlink()

        # The memory's copy shares unchanged rows with the live one.
        model = copy.deepcopy(learner.model).eval()
        model.new_destinations.stop()
        logger.info("nightly_baseline_made", edge=edge, facts_bytes=_num_bytes(folder))
        return NightlyBaseline(about, model, learner.memory.copy(), self._map_facts(folder))

    def _map_facts(self, folder: Path) -> SetFacts:
        facts = self._recorder.live.facts.fresh(0)
        facts.map(folder / FACTS)
        return facts

    def restore(self, name: str) -> None:
        """Load the baseline that a checkpoint names, if any. The learner must be restored already.

        One that cannot be read, or has another schema, is logged; there is none until the next
        midnight.
        """
        if not name or not self._is_on:
            return
        try:
            self._baseline = self._read(self._folder / name)
        except (
            OSError,
            msgspec.DecodeError,
            CorruptionError,
            VersionError,
            KeyError,
            TypeError,
        ) as error:
            logger.warning(
                "nightly_baseline_lost",
                name=name,
                reason=str(error),
                meaning="until the next midnight, windows have no scores of the nightly baseline",
            )
        self._report()

    def _read(self, folder: Path) -> NightlyBaseline:
        """Read a stored baseline. Raises: OSError, DecodeError, CorruptionError, VersionError,
        KeyError, TypeError."""
        learner = self._learner
        about = msgspec.json.decode((folder / "twin.json").read_bytes(), type=NightlyFile)
        made_on = Schema.restored(about.schema)
        if about.format > FORMAT or made_on != learner.model.schema:
            raise VersionError(
                f"The nightly baseline {folder.name} is of another schema or a newer streamd.",
                "none is needed.",
            )
        weights = (folder / WEIGHTS).read_bytes()
        if f"{crc32c(weights):08x}" != about.checksums[WEIGHTS]:
            raise CorruptionError(
                f"{folder / WEIGHTS} differs from its checksum.", "none is needed."
            )
        model = copy.deepcopy(learner.model)
        model.restore(load(weights))
        model.new_destinations.stop()
        files = [
            ImmutableFile(folder / name, about.checksums[name])
            for name in sorted(about.checksums)
            if name != WEIGHTS
        ]
        memory = read_memory(
            files,
            about.edge,
            about.memory_us,
            (learner.memory.dim, model.schema.edge_feature_dim),
            model.device,
            like=learner.memory,
        )
        return NightlyBaseline(about, model.eval(), memory, self._map_facts(folder))

    def drop_before(self, compaction_request: int | None) -> None:
        """Drop the baseline if compaction was requested up to an event after the start of its last
        window: it may hold deleted data."""
        if self._baseline is None or compaction_request is None:
            return
        if self._baseline.about.window_edge < compaction_request:
            logger.info(
                "nightly_baseline_dropped", reason="it may hold data that compaction removes"
            )
            self._baseline = None
            self.sweep()
            self._report()

    def sweep(self) -> None:
        """Remove all stored baselines except the present one, and facts that a kill left next to
        them. Call it after a checkpoint that no longer names the others."""
        if not self._learner.ranks.is_first:
            return
        for path in self._folder.glob("*"):
            if path.is_dir() and path.name != self.name:
                shutil.rmtree(path)
        for path in self._folder.glob("*.safetensors"):
            path.unlink()

    def _report(self) -> None:
        """Set the metrics of the baseline's size."""
        on_disk = _num_bytes(self._folder / self.name) if self._baseline else 0
        metrics.nightly_bytes.labels("mapped").set(on_disk)
        slots = self._baseline.facts.num_bytes_of_slots if self._baseline else 0
        metrics.nightly_bytes.labels("memory").set(slots)


def _num_bytes(folder: Path) -> int:
    """Bytes of the facts in a baseline's folder."""
    return sum(path.stat().st_size for path in folder.glob("facts*"))

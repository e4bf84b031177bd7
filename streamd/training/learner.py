"""The learner takes one model, its memory and its optimizer from window to window.

It scores each window before it trains on it (prequential evaluation).
"""

import copy
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from streamd.errors import RanksError
from streamd.eventlog.log_changes import Changes
from streamd.eventlog.reader import LogReader
from streamd.events import Float32
from streamd.gpu import memory_for, run_freeing_memory
from streamd.graph.negatives import LEARNED, SCORED
from streamd.graph.ranking import among_candidates
from streamd.models import EdgeRows, LinkModel, Memory, build_model
from streamd.models.layers.dropout import dropout_key
from streamd.ranks import ALONE, Ranks
from streamd.registry.candidate import TrainResult
from streamd.telemetry import metrics
from streamd.training.batches import (
    PlannedStep,
    RecordedLabels,
    Step,
    optimize,
    planned_steps,
    prepare_step,
    step_losses,
)
from streamd.training.device_transfer import DeviceTransfer
from streamd.training.held_out import (
    TailMeasures,
    held_out_chunks,
    learned_weights,
    ranked_by_rules,
    tail_measures,
)
from streamd.training.learning_settings import LearningSettings
from streamd.training.measures import LabelScores, Measures, measures
from streamd.training.recorder import Chunk
from streamd.training.replay import ReplayChunk, ReplayStore
from streamd.training.step_graphs import StepGraphs, can_replay
from streamd.windows.history import RULES

RECALLED_CHUNKS = 10
"""Past chunks on which forgetting is measured: enough for a trend, few enough for every window."""
Backup = tuple[dict[str, Tensor], dict[str, Any]]
"""State dicts of a model and of its optimizer."""
MemoryStep = Callable[[LinkModel, Memory, EdgeRows], AbstractContextManager[Tensor]]
"""A context manager that updates memory with a chunk's events, as `LinkModel.over` does."""


class Learner:
    """Scores the chunks of a window, then trains on them together with replayed chunks.

    With several ranks, each scores and trains on its share of the events; all have equal weights.
    Between windows, `memory` is at the last window's end under the present weights.

    Owner: one thread. tail: chunks with the last window's held-out events, for the next window.
    num_learned: calls of `learn` that trained, refused or not; at least 1 after `continue_from`.
    """

    def __init__(
        self, settings: LearningSettings, log: LogReader, replay: ReplayStore, ranks: Ranks = ALONE
    ) -> None:
        """log: gives the schema, the first event id and the deletes. Events come as recorded
        chunks."""
        # Model, optimizer and inputs.
        schema = log.state.schema
        self._settings = settings
        self._training = settings.training
        self._log = log
        self.ranks = ranks
        self.transfer = DeviceTransfer(settings.device, settings.gpu, schema.edge_feature_dim)
        self.model: LinkModel = build_model(
            settings.model, schema, settings.training.seed, self.transfer.device
        )
        self.optimizer = self.model.optimizer(settings.training.learning_rate)
        self.memory: Memory = self.model.new_memory(log.first_edge, ranks)
        self.replay = replay

        # Its past, and the hooks that other objects may set.
        self.tail: list[ReplayChunk] = []
        self.num_learned = 0
        self.memory_step: MemoryStep = LinkModel.over
        """Updates memory with a chunk in scoring and training. Backtests set another one."""
        self.on_progress: Callable[[int, int], None] = lambda done, total: None
        """Called after each training step with the steps done and the steps in all."""
        self.free_device_memory: Callable[[], bool] = lambda: False
        """Called if the GPU lacks memory for training. Returns: whether it freed any, so that a
        retry may succeed."""
        self.model.eval()

        # The window since `begin`: memory at its start, and an entry per chunk; `logits` and
        # `label_scores` have one per scored or labelled chunk.
        self._start = self.memory
        self._edges: list[EdgeRows] = []
        self.chunks: list[ReplayChunk | None] = []
        """Inputs to train on, for each chunk; None for a chunk without scored events. Other objects
        only read it."""
        self.logits: list[Float32] = []
        """For each chunk in `chunks` that is not None: logits of the candidates for
        training, float32[E, 11], before the training, -inf for no candidate. Other objects only
        read them."""
        self._new_counts: list[Tensor] = []  # of each scored chunk
        self._labels: list[RecordedLabels | None] = []
        self.label_scores: list[LabelScores] = []
        """For each chunk with labels."""
        self._steps = (0, 0)
        self._graphs: StepGraphs | None = None
        self._backup: Backup | None = None
        self.begin()
        log.follow(self)

    def start_at(self, edge: int) -> None:
        """Begin with empty memory at event `edge`, instead of the log's first event."""
        self.memory = self.model.new_memory(edge, self.ranks)
        self.begin()

    def begin(self) -> None:
        """Start a window: `learn` trains on the chunks that are scored from here on."""
        self._start = self.memory.copy()
        self._edges = []
        self.chunks = []
        self.logits = []
        self._new_counts = []
        self._labels = []
        self.label_scores = []
        self._backup = None

    @torch.no_grad()
    @memory_for("scoring a window")
    def score(self, chunk: Chunk) -> Float32:
        """Score a chunk's candidates before memory has its events, then update memory with them.

        Returns: float32[E, 101], logits of this rank's events, the true destination first, -inf for
        no candidate.
        """
        with self._over(self.memory, chunk.edges) as updated_PD:
            logits_EC, kept = self._score_events(chunk, updated_PD)
            self._score_labels(chunk, updated_PD)
        labels = chunk.labels
        self._labels.append(None if labels is None else RecordedLabels(labels, chunk.num_labels))
        self._edges.append(chunk.edges)
        self.chunks.append(kept)
        return logits_EC

    def _score_events(self, chunk: Chunk, updated_PD: Tensor) -> tuple[Float32, ReplayChunk | None]:
        """Returns: logits of the candidates to score, and the chunk's inputs for training."""
        if chunk.score is None or chunk.learn is None:
            return np.zeros((0, 0), np.float32), None
        logits_EC = self.transfer.logits(self.model, self.memory, chunk.score, updated_PD)
        logits_EC = among_candidates(logits_EC, chunk.score.is_candidate_EC.numpy())
        state_MD = self.memory.gather(self.transfer.send(chunk.learn.node_M), updated_PD).cpu()
        self.logits.append(logits_EC[:, LEARNED])
        num_sets, has_learned = self.model.schema.num_edge_sets, self.num_learned > 0
        self._new_counts.append(chunk.new_counts(logits_EC[:, SCORED], num_sets, has_learned))
        kept = ReplayChunk(chunk.first_edge, chunk.learn, state_MD, chunk.num_events)
        return logits_EC[:, SCORED], kept

    def _score_labels(self, chunk: Chunk, updated_PD: Tensor) -> None:
        if chunk.labels is None or self.model.label_head is None:
            return
        labels = self.transfer.labels(chunk.labels)
        state_MD = self.memory.gather(labels.around.node_M, updated_PD)
        heads = self.model.label_head
        set_L = labels.set_L
        predicted_LT = heads.predictions(self.model.labels(labels, state_MD), set_L)
        columns = predicted_LT, heads.constants(set_L), chunk.labels.target_LT
        predicted, constant, target = (column.cpu().numpy() for column in columns)
        self.label_scores.append(LabelScores(predicted, constant, target, set_L))

    def draw(self, window_edge: int, num_events: int) -> tuple[int, ...]:
        """Draw past chunks to replay with a window of `num_events` events: `training.replay_share`
        of that number, at most `training.replay_events`. Returns: their first event ids."""
        budget = min(self._training.replay_share * num_events, self._training.replay_events)
        drawn = self.replay.draw(budget, window_edge)
        return tuple(chunk.first_edge for chunk in drawn)

    @memory_for("learning a window")
    def learn(
        self, window_edge: int, epochs: int | None = None, replay: Sequence[int] | None = None
    ) -> TrainResult | None:
        """Train on the chunks scored since `begin`. Memory ends as under the new weights.

        1. Back up the weights, and update the running statistics of inputs.
        2. Train. If the GPU lacks memory, restore the backup and retry with less.
        3. Score the held-out tail, and update memory with the window under the new weights.
        4. Restore the backup, with `finite` False, unless all results are finite.
        5. Offer the chunks to replay: last, so that no window replays itself.

        window_edge: first event id of the window, a seed of dropout and draws. epochs: None for
        those of `LearningSettings.epochs_of`. replay: ids of past chunks; None draws them.
        Returns: None if only the rate of new destinations could be updated.
        """
        scored = [s for s in self.chunks if s is not None]
        weight_of = self.ranks.total([float(s.inputs.weight_E.sum()) for s in scored])
        if not any(weight_of):
            self.model.new_destinations.observe(self._new_counts, self.ranks)
            self._advance_all()
            return None

        # 1. Keep a backup for `undo_training`, then update the statistics.
        backup = copy_of((self.model.state_dict(), self.optimizer.state_dict()))
        self.update_statistics()
        num_events = sum(s.num_events for s in scored)
        num_learned = num_events - int(num_events * self._training.tail_share)
        weights = learned_weights(self.chunks, num_learned, self.ranks)
        drawn = self.draw(window_edge, num_events) if replay is None else replay
        past = [*self.tail, *self.replay.chunks_of(drawn)]
        steps = planned_steps(self.ranks, self._edges, self.chunks, weights, past, self._labels)
        epochs = epochs or self._settings.epochs_of(num_events)
        # 2. Train.
        loss = run_freeing_memory(
            partial(self._train_epochs, epochs, window_edge, steps),
            # The cheapest saving first; none for several ranks: they could not know of a retry.
            (*self.transfer.savings, self.free_device_memory) if self.ranks.size == 1 else (),
            partial(self._start_over, backup),
        )
        self.model.eval()
        self._backup = backup
        check_equal_weights(self.model, self.ranks)

        # 3. Validate on the held-out tail, and update memory under the new weights.
        self.tail = held_out_chunks(self.chunks, weights, num_learned)
        tail, tail_is_finite = self._check_tail(weights)
        self._advance_all()
        # 4. Restore everything if any value is not finite.
        finite = math.isfinite(loss) and tail_is_finite and self.model.is_finite
        finite = self.ranks.all(finite and self.memory.is_finite(self._start))
        if not finite:
            self.undo_training()

        # 5. From here on the window belongs to the past.
        for chunk, weight in zip(scored, weight_of, strict=True):
            if weight:
                self.replay.offer(chunk)
        self.num_learned += 1
        self.transfer.report()
        return TrainResult(loss=loss, finite=finite, **tail)

    def _start_over(self, backup: Backup) -> None:
        """Undo the changes of an interrupted training."""
        self.restore_weights(*backup)
        self.update_statistics()

    @property
    def learning_rate(self) -> float:
        return self._training.learning_rate

    def take_over(self, other: "Learner") -> None:
        """Copy another learner's weights, optimizer, memory and past."""
        self.model = copy.deepcopy(other.model)
        self.optimizer = self.model.optimizer(self.learning_rate)
        self.optimizer.load_state_dict(copy_of(other.optimizer.state_dict()))
        self.memory = other.memory.copy()
        self.replay = other.replay.copy()
        self.tail = list(other.tail)
        self.num_learned = other.num_learned
        self.begin()

    def continue_from(self, weights: dict[str, Tensor], memory: Memory) -> None:
        """Continue from a version's weights, with a new optimizer and no held-out tail.

        memory: the version's, at the event at which training continues.
        """
        self.restore_weights(weights, None)
        self.memory = memory
        self.tail = []
        self.num_learned = max(self.num_learned, 1)
        self.begin()

    @torch.no_grad()
    @memory_for("measuring forgetting")
    def recall(self) -> Measures | None:
        """Measure forgetting: scores of the present weights on replay chunks, among 11 candidates.

        It takes the ten chunks with the smallest hashes of their event ids, so that few change from
        window to window. Returns: None if replay is empty.
        """
        chunks = sorted(
            self.replay.chunks, key=lambda c: zlib.crc32(c.first_edge.to_bytes(8, "little"))
        )[:RECALLED_CHUNKS]
        logits_EC = gather_logits(self.ranks, [self._logits_of(c)[0] for c in chunks])
        return measures(logits_EC) if len(logits_EC) else None

    def apply(self, changes: Changes) -> None:
        """Apply new deletes to tail and replay. All ranks call this at the same commit."""
        if changes.has_deletes:
            self.drop_deleted()

    def drop_deleted(self) -> None:
        """Remove all deleted data from the tail and from the replay store, as after loading a
        checkpoint."""
        deletions = self._log.deletions
        self.tail = [chunk.without_deleted(deletions) for chunk in self.tail]
        self.replay.drop_deleted(deletions)

    @memory_for("moving memory")
    def undo_training(self) -> None:
        """Restore the weights and the optimizer from before `learn`, and memory under them. The
        tail, replay and `num_learned` do not go back.

        Raises: ValueError if `learn` did not train since `begin`.
        """
        if self._backup is None:
            raise ValueError("Nothing was learned since `begin`: there is nothing to undo.")
        self.restore_weights(*self._backup)
        self._advance_all()

    def restore_weights(self, weights: dict[str, Tensor], optimizer: dict[str, Any] | None) -> None:
        """Replace the weights and the optimizer's state; None creates a new optimizer."""
        # CUDA graphs point to tensors of the optimizer, which are replaced now.
        self._graphs = None
        self.model.restore(weights)
        if optimizer is None:
            self.optimizer = self.model.optimizer(self.learning_rate)
        else:
            # A copy, because the optimizer would change the given tensors in later steps.
            self.optimizer.load_state_dict(copy_of(optimizer))
        self.model.eval()

    def update_statistics(self) -> None:
        """Update the running statistics by the chunks scored since `begin`."""
        for edges, chunk in zip(self._edges, self.chunks, strict=True):
            if chunk is not None:
                self.model.observe(chunk.inputs, edges, self.ranks)
        self.model.new_destinations.observe(self._new_counts, self.ranks)
        for labels in self._labels:
            if labels is not None and self.model.label_head is not None:
                target_LT = torch.cat(self.ranks.gather_tensor(labels.inputs.target_LT))
                set_L = self.ranks.gather(labels.inputs.set_L)
                self.model.label_head.observe(target_LT, set_L)

    def _train_epochs(self, passes: int, window_edge: int, steps: list[PlannedStep]) -> float:
        """Train for `passes` epochs. Returns: the last epoch's loss."""
        loss = math.nan
        self._steps = (0, passes * len(steps))
        pads = self._step_graphs() is not None
        prepare = partial(prepare_step, transfer=self.transfer, pads=pads)
        for epoch, ready in enumerate(self.transfer.epochs(passes, steps, prepare)):
            loss = self._epoch(ready, dropout_key(self._training.seed, window_edge, epoch))
        return loss

    def _epoch(self, steps: Iterator[Step], dropout: int) -> float:
        """Train for one epoch, with memory from the window's start. Returns: mean link loss over
        the weights of the window's and the replayed events.

        dropout: key of the dropout's hash.
        """
        # Setting the mode walks all modules, which takes .4 ms.
        if not self.model.training:
            self.model.train()
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        memory = self._start.copy()
        # A tensor on the device: reading each loss would wait for the GPU.
        total = torch.zeros((), dtype=torch.float64, device=self.transfer.device)
        count = 0.0
        graphs = self._step_graphs()
        with nullcontext() if graphs is None else graphs.epoch(dropout):
            for step in steps:
                # Deletes first: they may leave no message, which a graph needs.
                memory.forget(step.edges.deletes)
                if graphs is not None and graphs.can_learn(step, memory):
                    count += step.events
                    with memory.over(step.edges, partial(graphs.learn, step=step)):
                        pass
                else:
                    if self.transfer.replays_steps:
                        metrics.gpu_steps.labels("launched").inc()
                    with self._over(memory, step.edges) as updated_PD:
                        losses, of_links = step_losses(
                            self.model, memory, step, updated_PD, dropout, self.transfer
                        )
                        if of_links is not None:
                            total += of_links.detach()
                            count += step.events
                        optimize(losses, parameters, self.optimizer, self.ranks)
                self._steps = (self._steps[0] + 1, self._steps[1])
                self.on_progress(*self._steps)
        if graphs is not None:
            total += graphs.total
        return self.ranks.total([float(total)])[0] / count if count else math.nan

    def _step_graphs(self) -> StepGraphs | None:
        """CUDA graphs of the present model and optimizer; None if steps cannot use them."""
        usual = self.memory_step is LinkModel.over and self.ranks.size == 1
        if not (usual and can_replay(self.model, self.transfer)):
            return None
        if self._graphs is None or not self._graphs.are_of(self.model, self.optimizer):
            self._graphs = StepGraphs(self.model, self.optimizer, self.transfer)
        return self._graphs

    @torch.no_grad()
    def _check_tail(self, weights: list[Tensor]) -> tuple[TailMeasures, bool]:
        """Returns: measures of all ranks' held-out events; whether this rank's logits are
        finite."""
        held = [
            (((1 - w) * s.inputs.weight_E > 0) & ~s.inputs.is_new_E).numpy()
            for s, w in zip(self.chunks, weights, strict=True)
            if s is not None
        ]
        before_EC = gather_logits(
            self.ranks, [x[h] for x, h in zip(self.logits, held, strict=True)]
        )
        after = [self._logits_of(t) for t in self.tail]
        after_EC = gather_logits(self.ranks, [logits for logits, _ in after])
        inputs = [s.inputs for s in self.chunks if s is not None]
        by_rule = [ranked_by_rules(i, h) for i, h in zip(inputs, held, strict=True)]
        of_rules = [gather_logits(self.ranks, [part[name] for part in by_rule]) for name in RULES]
        measured = tail_measures(before_EC, after_EC, of_rules)
        return measured, all(is_finite for _, is_finite in after)

    def _logits_of(self, chunk: ReplayChunk) -> tuple[Float32, bool]:
        """Returns: logits of events with weight above 0 and a known destination, float32[E, 11];
        whether those of all weighted ones are finite."""
        inputs, state_MD = self.transfer.inputs(chunk.inputs), self.transfer.send(chunk.state_MD)
        logits_EC: Float32 = self.model(inputs, state_MD).cpu().numpy()
        own_E = chunk.inputs.weight_E.numpy() > 0
        known_E = own_E & ~chunk.inputs.is_new_E.numpy()
        ranked_EC = among_candidates(logits_EC, chunk.inputs.is_candidate_EC.numpy())
        return ranked_EC[known_E], bool(np.isfinite(logits_EC[own_E]).all())

    def _advance_all(self) -> None:
        """Update memory with the window's chunks and all deletes, under the present weights."""
        self.memory = self._start.copy()
        for edges in self._edges:
            self.model.advance(self.memory, edges)
        self.memory.forget(self._log.deletions.of_nodes)

    def _over(self, memory: Memory, edges: EdgeRows) -> AbstractContextManager[Tensor]:
        return self.memory_step(self.model, memory, edges)


def gather_logits(ranks: Ranks, parts: Sequence[Float32]) -> Float32:
    """Gather the logits of all ranks' events, float32[E, 11]. parts: of this rank's."""
    logits_EC: Float32 = ranks.gather(
        np.concatenate([np.zeros((0, len(LEARNED)), np.float32), *parts])
    )
    return logits_EC


def copy_of(state: Any) -> Any:
    """Copy tensors in nested dicts, lists and tuples. `copy.deepcopy` takes ten times as long: in
    windows of few events, more than two training steps."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {name: copy_of(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(copy_of(value) for value in state)
    return state


def check_equal_weights(model: LinkModel, ranks: Ranks) -> None:
    """Raises: RanksError if ranks have different weights; then all resume from the last
    checkpoint."""
    if ranks.size == 1:
        return
    bytes_ = torch.cat([p.detach().flatten().cpu() for p in model.parameters()])
    sums = ranks.gather_messages(zlib.crc32(bytes_.numpy().data))
    if len(set(sums)) > 1:
        raise RanksError(
            f"The ranks learned different weights: their checksums are {sums}.",
            "use machines of one kind, with the same streamd and torch.",
        )

"""A TGN, or the pair network alone, in numpy, for answers on a CPU.

With the same weights it has the same outputs as `LinkModel`, up to float32 rounding; it cannot be
trained. For a few nodes, torch makes a hundred small calls that take ten times as long as the
arithmetic, and torch's code takes more memory than the rest of a server. numpy multiplies matrices
by BLAS, as torch does.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.events import Bools, Float32, Int64, Schema
from streamd.graph.facts.columns import num_facts
from streamd.graph.label_rows import LabelRows
from streamd.graph.neighborhood import Hop, Neighborhood
from streamd.models.architectures import architecture_of
from streamd.models.inference.inference import vector_widths
from streamd.models.inference.new_rates import COUNTS, NUM_COUNTS, NewRates
from streamd.models.inference.numpy_layers import (
    GRUCell,
    Linear,
    Network,
    NumpyTimeEncoding,
    RootAttention,
    Standardizer,
    StoredWeights,
    sigmoid,
    softmax,
)
from streamd.models.inference.numpy_new_score import NumpyNewScore
from streamd.models.inference.standard_values import (
    LABEL_HIDDEN,
    LEAST_NORM,
    LEAST_SHARE,
    MATCH_HIDDEN,
    MATCH_SCALE,
    NEW_HIDDEN,
    PAIR_HIDDEN,
)
from streamd.models.inference.stored_weights import HISTORY_WEIGHT, MATCH, NEW_SCORE
from streamd.models.memory.edge_rows import EdgeRows
from streamd.models.memory.memory import Memory
from streamd.settings.loading import ModelSettings

BLOCK_ROOTS = 256
"""Number of roots that are embedded at once, so that intermediate arrays fit the cache, and their
memory does not grow with the number of roots."""


class NumpyModel:
    """A version with numpy arrays as weights, which never change; `forget_rate` drops its rate of
    new destinations. `streamd.models.inference.inference.Inference` documents each method."""

    device = "cpu"

    def __init__(
        self, settings: ModelSettings, schema: Schema, weights: Mapping[str, NDArray[Any]]
    ) -> None:
        """Raises: VersionError if the weights are of another model."""
        assert architecture_of(settings).in_numpy
        self.settings = settings
        self.schema = schema
        stored = StoredWeights(weights, schema.num_edge_sets)
        d, facts = settings.dim, num_facts(schema)

        # Every model has statistics of its inputs, and the network over pair facts.
        edge_dim, node_dim = schema.edge_feature_dim, schema.node_feature_dim
        self._fact_stats = Standardizer(stored, "fact_stats", facts)
        self._edge_stats = Standardizer(stored, "edge_stats", edge_dim, schema.all_edge_columns)
        self._node_stats = Standardizer(stored, "node_stats", node_dim, schema.all_node_columns)
        self._pair = Network(
            stored.linear("pair.0", facts, PAIR_HIDDEN),
            stored.linear("pair.2", PAIR_HIDDEN, PAIR_HIDDEN),
            stored.linear("pair.4", PAIR_HIDDEN, 1),
        )

        # Destinations without an event.
        self._new = NewRates(stored.optional64(COUNTS, NUM_COUNTS, schema.num_edge_sets))

        # The graph's part, and label heads.
        gap_us = float(stored.take("gap_us"))
        gap_us = gap_us if gap_us > 0 else 1.0
        self._graph = _GraphPart(settings, schema, stored, gap_us) if self._has_graph else None
        self._match = None
        if any(name.startswith(MATCH) for name in weights):
            self._match = _FeatureMatch(stored, facts)
        self._new_score = None
        if any(name.startswith(NEW_SCORE) for name in weights):
            self._new_score = NumpyNewScore(stored, facts, node_dim)
        self._heads: list[_LabelHead] = []
        if settings.labels != "none" and schema.label_dim:
            names = ["label_head"]
            names += [f"label_head.others.{i}" for i in range(schema.num_node_sets - 1)]
            width = (d if self._has_graph else 0) + facts
            self._heads = [_LabelHead(settings, schema.label_dim, width, stored, n) for n in names]
        stored.end()

    @property
    def has_labels(self) -> bool:
        return bool(self._heads)

    @property
    def _has_graph(self) -> bool:
        return architecture_of(self.settings).has_memory

    def advance(self, memory: Memory, chunk: EdgeRows) -> None:
        with memory.over(chunk, self.updated):
            pass

    def updated(self, memory: Memory) -> Float32:
        """States of the nodes with a pending message, after the GRU: float32[P, D]."""
        if self._graph is None or not len(memory.pending_node):
            other_PD: Float32 = memory.pending_other
            return other_PD
        own_PD = memory.rows.state(memory.pending_node)
        message = [
            own_PD,
            memory.pending_other,
            self._edge_stats(memory.pending_features),
            self._graph.message_time(memory.since_last()),
        ]
        return self._graph.gru(np.concatenate(message, 1), own_PD)

    @property
    def widths(self) -> tuple[int, int, int]:
        has_match, scores_new = self._match is not None, self._new_score is not None
        return vector_widths(self.settings, self.schema, has_match, scores_new)

    def embed(
        self, memory: Memory, updated_PD: Float32, around: Neighborhood
    ) -> tuple[Float32, Float32, Float32]:
        assert self._graph is not None
        graph = self._graph
        z_UD = self._embed(memory, updated_PD, around)
        src_UD, dst_UD = graph.head_src(z_UD), graph.head_dst(z_UD)
        if self._match is None:
            return z_UD, src_UD, dst_UD

        # The one-hot of the node sets comes before the features.
        first = self.schema.all_node_columns[0].start
        has_M = (around.node_MD[:, first:] != 0).any(1)
        features_MD, hop = self._node_stats(around.node_MD), around.hops[0]
        near_UD, own_UD, count_U = root_features(features_MD, has_M, hop)
        src = [src_UD, of_length_1(near_UD[:, first:])]
        dst = [dst_UD, of_length_1(own_UD[:, first:])]
        if self._new_score is not None:
            age_U = around.age_M[hop.root_U]
            new_src_UH, new_dst_UH = self._new_score.vectors(near_UD, count_U, own_UD, age_U)
            src.append(new_src_UH)
            dst.append(new_dst_UH)
        return z_UD, np.concatenate(src, 1), np.concatenate(dst, 1)

    def logits(self, facts_RF: Float32, src_RD: Float32, dst_RD: Float32) -> Float32:
        out = self.pair_logits(facts_RF)
        if self._graph is not None:
            out += self.residual(facts_RF, src_RD, dst_RD)
        return out

    def pair_logits(self, facts_RF: Float32) -> Float32:
        if not self.settings.pair_facts:
            return np.zeros(len(facts_RF), np.float32)
        return self._new(self._pair(self._fact_stats(facts_RF))[:, 0], facts_RF)

    def residual(self, facts_RF: Float32, src_RD: Float32, dst_RD: Float32) -> Float32:
        assert self._graph is not None
        d = self.settings.dim
        added_R = self._graph.residual(facts_RF, src_RD[:, :d], dst_RD[:, :d])
        facts = match_R = np.zeros(0, np.float32)
        end = src_RD.shape[1] - (NEW_HIDDEN + 1 if self._new_score is not None else 0)
        if self._match is not None:
            match_R = np.einsum("rd,rd->r", src_RD[:, d:end], dst_RD[:, d:end])
            facts = self._fact_stats(facts_RF)
            added_R += self._match(facts, match_R)
        if not self.settings.pair_facts:
            return added_R

        # New destinations have a score by features instead.
        new_N = np.flatnonzero(self._new.replaces(facts_RF))
        added_R[new_N] = 0.0
        if self._new_score is not None and len(new_N):
            src_NH, dst_NH = src_RD[new_N, end:], dst_RD[new_N, end:]
            added_R[new_N] = self._new_score(facts[new_N], match_R[new_N], src_NH, dst_NH)
        return added_R

    def forget_rate(self) -> None:
        self._new = NewRates(np.zeros((NUM_COUNTS, self.schema.num_edge_sets)))

    @contextmanager
    def keeping_rate(self) -> Iterator[None]:
        before = self._new
        try:
            yield
        finally:
            self._new = before

    @property
    def mean_facts(self) -> Float32:
        return self._fact_stats.mean

    def neighbor_weights(
        self, memory: Memory, updated_PD: Float32, around: Neighborhood
    ) -> tuple[Float32, ...]:
        assert self._graph is not None
        hop = around.hops[0]
        h_MD = self._states(memory, updated_PD, around)
        whole = slice(len(hop.root_U))
        return (self._graph.weights(h_MD, hop, whole, self._edge_stats(hop.edge_UKD)),)

    def labels(self, memory: Memory, updated_PD: Float32, rows: LabelRows, set_U: Int64) -> Float32:
        parts = [self._fact_stats(rows.facts_UF)]
        if self._graph is not None:
            parts.insert(0, self._embed(memory, updated_PD, rows.around))
        inputs_UI = np.concatenate(parts, 1)

        # The head of a node's set predicts its label.
        out_UT = np.zeros((len(inputs_UI), self.schema.label_dim), np.float32)
        for number, head in enumerate(self._heads):
            own = np.flatnonzero(set_U == number)
            if len(own):
                out_UT[own] = head(inputs_UI[own], rows.history_UT[own])
        return out_UT

    def _embed(self, memory: Memory, updated_PD: Float32, around: Neighborhood) -> Float32:
        """Embeddings of a neighborhood's roots: float32[U, D]."""
        assert self._graph is not None
        h_MD = self._states(memory, updated_PD, around)
        hop = around.hops[0]
        num_roots = len(hop.root_U)
        z_UD = np.empty((num_roots, self.settings.dim), np.float32)
        for a in range(0, num_roots, BLOCK_ROOTS):
            b = min(a + BLOCK_ROOTS, num_roots)
            edges_UKF = self._edge_stats(hop.edge_UKD[a:b])
            z_UD[a:b] = self._graph.layer(h_MD, hop, slice(a, b), edges_UKF)
        return z_UD

    def _states(self, memory: Memory, updated_PD: Float32, around: Neighborhood) -> Float32:
        """The states of all nodes before the layer: float32[M, D]."""
        assert self._graph is not None
        h_MD = memory.host_states(around.node_M, updated_PD)
        self._graph.add_to_states(h_MD, around.node_M, self._node_stats(around.node_MD))
        return h_MD


class _GraphPart:
    """The parts of a TGN besides the pair network: memory's GRU, the encoder, and the head that
    combines two embeddings."""

    def __init__(
        self, settings: ModelSettings, schema: Schema, stored: StoredWeights, gap_us: float
    ) -> None:
        d, t, f = settings.dim, settings.time_dim, schema.edge_feature_dim

        # Memory, and the initial states of nodes.
        self.message_time = NumpyTimeEncoding(stored, "updater.time", t, gap_us)
        self.gru = GRUCell(stored, "updater.gru", 2 * d + f + t, d)
        self._node_in_FD: Float32 | None = None
        if schema.node_feature_dim:
            shape = (d, schema.node_feature_dim)
            self._node_in_FD = stored.float32("encoder.node_in.weight", *shape).T
        self._id_vectors: Float32 | None = None
        if settings.id_rows:
            self._id_vectors = stored.float32("encoder.id_vectors.weight", settings.id_rows, d)

        # The layer.
        name = "encoder.layers.0"
        self._time = NumpyTimeEncoding(stored, "encoder.time", t, gap_us)
        self._attention = RootAttention(
            stored, f"{name}.attention", d, d + f + t, d, settings.heads
        )
        self._skip = stored.linear(f"{name}.skip", d, d)

        # The head.
        self.head_src: Linear = stored.linear("head_src", d, d)
        self.head_dst: Linear = stored.linear("head_dst", d, d)
        self._out_D = stored.float32("head_out.weight", 1, d)[0]
        self._set_SD: Float32 | None = None
        if schema.num_edge_sets > 1:
            self._set_SD = stored.float32("head_set.weight", d, schema.num_edge_sets).T

    def add_to_states(self, h_MD: Float32, node_M: Int64, features_MD: Float32) -> None:
        """Add projected node features, which are standardised, and id vectors to the states of
        memory, as `Encoder.start` does."""
        if self._node_in_FD is not None:
            h_MD += features_MD @ self._node_in_FD
        if self._id_vectors is not None:
            row_M = np.maximum(node_M, 0) % len(self._id_vectors)
            h_MD += self._id_vectors[row_M] * (node_M >= 0)[:, None]

    def layer(self, h_MD: Float32, hop: Hop, roots: slice, edges_UKF: Float32) -> Float32:
        """Embeddings of some roots of a hop. h_MD: states of all nodes; edges_UKF: standardised
        features of these roots' edges."""
        own_UD, entry_UKE = self._layer_inputs(h_MD, hop, roots, edges_UKF)
        z_UD = self._attention(own_UD, entry_UKE, hop.mask_UK[roots])
        z_UD += self._skip(own_UD)
        return z_UD

    def weights(self, h_MD: Float32, hop: Hop, roots: slice, edges_UKF: Float32) -> Float32:
        """Attention weights, averaged over heads: float32[U, K]. Arguments as in `layer`."""
        seen = self._layer_inputs(h_MD, hop, roots, edges_UKF)
        mean_UK: Float32 = self._attention.weights(*seen, hop.mask_UK[roots]).mean(1)
        return mean_UK

    def _layer_inputs(
        self, h_MD: Float32, hop: Hop, roots: slice, edges_UKF: Float32
    ) -> tuple[Float32, Float32]:
        """The layer's inputs: states of roots, float32[U, D], and entries of their neighbors,
        float32[U, K, E]."""
        parts = [h_MD[hop.neighbor_UK[roots]], edges_UKF, self._time(hop.ago_UK[roots])]
        return h_MD[hop.root_U[roots]], np.concatenate(parts, 2)

    def residual(self, facts_RF: Float32, src_RD: Float32, dst_RD: Float32) -> Float32:
        """The graph's part of the logit of each row: float32[R]."""
        hidden_RD = src_RD + dst_RD
        if self._set_SD is not None:
            hidden_RD += facts_RF[:, -len(self._set_SD) :] @ self._set_SD
        np.maximum(hidden_RD, 0, out=hidden_RD)
        out: Float32 = hidden_RD @ self._out_D
        return out


class _FeatureMatch:
    """`streamd.models.feature_match.FeatureMatch`."""

    def __init__(self, stored: StoredWeights, facts: int) -> None:
        self._facts = stored.linear(f"{MATCH}facts", facts, MATCH_HIDDEN)
        match_H1 = stored.float32(f"{MATCH}match.weight", MATCH_HIDDEN, 1)
        self._match_H = np.float32(MATCH_SCALE) * match_H1[:, 0]
        self._out_H = stored.float32(f"{MATCH}out.weight", 1, MATCH_HIDDEN)[0]

    def __call__(self, facts_RF: Float32, match_R: Float32) -> Float32:
        """The addition to logits: float32[R]. facts_RF: standardised."""
        hidden_RH = self._facts(facts_RF)
        hidden_RH += match_R[:, None] * self._match_H
        np.maximum(hidden_RH, 0, out=hidden_RH)
        out: Float32 = hidden_RH @ self._out_H
        return out


def root_features(features_MD: Float32, has_M: Bools, hop: Hop) -> tuple[Float32, Float32, Float32]:
    """As `streamd.models.feature_match.root_features`, of one hop."""
    features_MD = features_MD * has_M[:, None]
    near_UD = np.empty((len(hop.root_U), features_MD.shape[1]), np.float32)
    for a in range(0, len(near_UD), BLOCK_ROOTS):
        rows = slice(a, a + BLOCK_ROOTS)
        near_UKD = features_MD[hop.neighbor_UK[rows]] * hop.mask_UK[rows, :, None]
        near_UD[rows] = near_UKD.sum(1)
    count_U: Float32 = (has_M[hop.neighbor_UK] & hop.mask_UK).sum(1).astype(np.float32)
    return near_UD, features_MD[hop.root_U], count_U


def of_length_1(rows: Float32) -> Float32:
    """Rows [U, D] divided by their lengths; zeros stay zeros."""
    norms: Float32 = np.sqrt((rows * rows).sum(1, keepdims=True))
    out: Float32 = rows / norms.clip(LEAST_NORM)
    return out


class _LabelHead:
    """`LabelHead` of `streamd.models.labels` for one node set, with its `predict`."""

    def __init__(
        self, settings: ModelSettings, dim: int, inputs: int, stored: StoredWeights, name: str
    ) -> None:
        self._is_regression = settings.labels == "regression"
        self._dim = dim
        self._stats = Standardizer(stored, f"{name}.target_stats", dim)
        self._net = Network(
            stored.linear(f"{name}.net.0", inputs, LABEL_HIDDEN),
            stored.linear(f"{name}.net.2", LABEL_HIDDEN, dim),
        )
        history = f"{name}.history.0"
        take = stored.optional if history == HISTORY_WEIGHT else stored.float32
        self._history_T = take(history, dim)

    def __call__(self, inputs_LI: Float32, history_LT: Float32) -> Float32:
        """Probabilities of classes, or quantities in their original unit: float32[L, T]."""
        out_LT = self._net(inputs_LI)
        out_LT += self._history_T * self._as_output(history_LT)
        if self._is_regression:
            return self._stats.back(out_LT)
        return sigmoid(out_LT) if self._dim == 1 else softmax(out_LT)

    def _as_output(self, target_LT: Float32) -> Float32:
        """Targets as outputs of the head: the outputs whose prediction is the target."""
        if self._is_regression:
            return self._stats(target_LT)
        least = np.float32(LEAST_SHARE)
        if self._dim == 1:
            share = np.clip(target_LT, least, 1 - least)
            logit: Float32 = np.log(share / (1 - share))
            return logit
        amount = np.maximum(target_LT, 0)
        share = amount / np.maximum(amount.sum(1, keepdims=True), np.float32(1e-9))
        log: Float32 = np.log(np.maximum(share, least))
        return log

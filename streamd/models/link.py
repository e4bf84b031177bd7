"""Link prediction: a network over pair facts, plus a graph network as a damped residual."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding

from streamd.errors import VersionError
from streamd.events import Schema
from streamd.graph.facts.columns import num_facts
from streamd.graph.neighborhood import SamplingPlan
from streamd.models.architectures import architecture_of
from streamd.models.device_arrays import Array, as_tensor
from streamd.models.feature_match import FeatureMatch, matches, of_length_1, root_features
from streamd.models.inference.new_rates import COUNTS
from streamd.models.inference.standard_values import NEW_HIDDEN
from streamd.models.inference.stored_weights import (
    HISTORY_WEIGHT,
    MATCH,
    NEW_SCORE,
    with_all_facts,
)
from streamd.models.inputs import LinkInputs
from streamd.models.labels import LabelHead, LabelHeads, LabelInputs
from streamd.models.layers.dropout import half_dropout
from streamd.models.layers.table import layers_of
from streamd.models.memory.edge_rows import EdgeRows
from streamd.models.memory.memory import Memory
from streamd.models.memory.updater import MemoryUpdater
from streamd.models.new_destinations import NewDestinations
from streamd.models.new_score import LOG_NEGATIVES, NewScore
from streamd.models.pair import pair_network
from streamd.models.schema_inputs import SchemaInput
from streamd.models.standardize import RunningStandardizer, standardizer
from streamd.ranks import ALONE, Ranks
from streamd.settings.loading import ModelSettings

DAMPED_RATE = 0.3
"""Learning rate of the graph's part, as a share of `training.learning_rate`: the pair network
learns faster."""
WEIGHT_DECAY = 0.01
"""Of the graph's part, so that the residual stays small unless it lowers the loss."""

LARGE_TENSOR = 1 << 16
"""Elements of a tensor above which `is_finite` checks it by itself instead of copying it together
with others."""


class LinkModel(nn.Module):
    """logit = pair(facts) + residual(embeddings) + match of features; `model.name: pair` has the
    first part alone, and streams without node features have no match. The logit of a new
    destination is its rate + a score by features.

    The residual's last layer starts at zero, so training starts from the pair network and learns a
    correction. Without `model.pair_facts` the logit is the residual alone, undamped: the model as
    its paper describes it.
    """

    gap_us: Tensor

    def __init__(self, settings: ModelSettings, schema: Schema) -> None:
        super().__init__()
        self.settings = settings
        self.schema = schema
        self.architecture = architecture_of(settings)
        self.has_memory = self.architecture.has_memory
        layers = layers_of(settings.name)
        self.has_graph = layers is not None
        d = settings.dim
        t = settings.time_dim

        # Inputs are standardised by statistics of recorded windows; the gap is 0 until the first
        # window sets it.
        self.num_facts = facts = num_facts(schema)
        self.fact_stats = RunningStandardizer(facts)
        self.edge_stats = standardizer(schema.edge_feature_dim, schema.all_edge_columns)
        self.node_stats = standardizer(schema.node_feature_dim, schema.all_node_columns)
        self.register_buffer("gap_us", torch.zeros((), dtype=torch.float64))

        # The logit of destinations without an event has a part that is not learned.
        self.new_destinations = NewDestinations(schema.num_edge_sets)

        # Every model has a pair network; without `model.pair_facts` it is not used.
        self.pair = pair_network(facts)
        if self.has_memory:
            self.updater = MemoryUpdater(d, schema.edge_feature_dim, t)

        # The graph's part: nodes are embedded, and a head combines the embeddings of two nodes.
        if layers is not None:
            self.encoder = layers.encoder(layers.layer, layers.number, settings, schema)
            self.head_src = nn.Linear(d, d)
            self.head_dst = nn.Linear(d, d)
            self.head_out = nn.Linear(d, 1, bias=False)
            # With several edge sets, the head's term for the set of the queried pair.
            self.head_set = None
            if schema.num_edge_sets > 1:
                self.head_set = nn.Linear(schema.num_edge_sets, d, bias=False)
            if settings.pair_facts:
                # At zero the model equals its pair network.
                nn.init.zeros_(self.head_out.weight)
        self.label_head = None
        if settings.labels != "none" and schema.label_dim:
            dim = d if self.has_graph else 0
            self.label_head = LabelHeads(
                settings, schema.label_dim, dim, facts, schema.num_node_sets
            )

        # Created last, so that the weights above are drawn as without it.
        self.feature_match = None
        if self.has_graph and settings.pair_facts and schema.node_feature_dim:
            self.feature_match = FeatureMatch(facts)
        self.new_score = None
        if self.feature_match is not None:
            self.new_score = NewScore(facts, schema.node_feature_dim)

    def schema_inputs(self) -> dict[str, SchemaInput]:
        return {
            "pair.0.weight": SchemaInput("facts"),
            "head_set.weight": SchemaInput("edge_sets", optional=True),
        }

    @property
    def device(self) -> torch.device:
        return self.gap_us.device

    @property
    def plan(self) -> SamplingPlan:
        """The sampling plan of its neighbors."""
        return self.architecture.plan(self.settings)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Weights and statistics by name, on the host, as versions store them."""
        return {name: t.cpu().contiguous().numpy() for name, t in self.state_dict().items()}

    def restore(self, weights: Mapping[str, Array]) -> None:
        """Load stored weights and statistics. Those of a release with fewer facts are padded, which
        leaves their outputs unchanged. Raises: VersionError if they are of another model."""
        own, num_sets = self.state_dict(), self.schema.num_edge_sets
        absent = (HISTORY_WEIGHT, COUNTS)
        full = {n: torch.zeros_like(t) for n, t in own.items() if n in absent}
        # A match and a score of new destinations that were not stored start as in a new model:
        # they add nothing.
        full |= {n: t for n, t in own.items() if n.startswith((MATCH, NEW_SCORE))}
        for name, weight in weights.items():
            shape = own[name].shape if name in own else ()
            full[name] = with_all_facts(as_tensor(weight), shape, num_sets, name)

        # torch would load the ones that fit before it refuses the others.
        odd = [
            name
            for name in sorted(own.keys() | full.keys())
            if name not in own or name not in full or own[name].shape != full[name].shape
        ]
        if odd:
            raise VersionError(
                f"The weights do not fit the model: {', '.join(odd)[:300]}.",
                "use the release of streamd that wrote them, or promote another version.",
            )
        self.load_state_dict(full)

    @property
    def is_finite(self) -> bool:
        """Whether all weights and statistics are finite."""
        # Small tensors are checked together: a call for each would take longer than the check.
        together: dict[object, list[Tensor]] = {}
        for name, tensor in self.state_dict().items():
            if tensor.is_floating_point():
                key = tensor.dtype if tensor.numel() < LARGE_TENSOR else name
                together.setdefault(key, []).append(tensor.flatten())
        return all(
            bool((torch.cat(part) if len(part) > 1 else part[0]).isfinite().all())
            for part in together.values()
        )

    def observe(self, inputs: LinkInputs, edges: EdgeRows, ranks: Ranks = ALONE) -> None:
        """Update the running statistics from the inputs that a window recorded; the first window
        sets the median gap, once. ranks: each recorded a share of the inputs."""
        is_candidate_EC = inputs.is_candidate_EC
        all_count = bool(is_candidate_EC.all())
        facts = inputs.facts_ECF if all_count else inputs.facts_ECF[is_candidate_EC]
        self.fact_stats.update(facts, ranks)
        self.edge_stats.update(torch.from_numpy(edges.features_ED))
        node_MD = inputs.node_MD
        if ranks.size > 1 and node_MD.shape[1]:
            # A node counts once, even if several ranks have it.
            node_MD = node_MD[ranks.not_before(inputs.node_M)]
        self.node_stats.update(node_MD, ranks)

        # A later gap would change the meaning of all times that the weights were trained on.
        if self.gap_us == 0 and len(edges.time_E) > 1:
            gaps = np.diff(edges.time_E)
            self.gap_us.fill_(float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1e6)

    def new_memory(self, edge: int = 0, ranks: Ranks = ALONE) -> Memory:
        return Memory(
            self.settings.dim if self.has_memory else 0,
            self.schema.edge_feature_dim,
            edge,
            self.device,
            ranks=ranks,
        )

    def updated(self, memory: Memory) -> Tensor:
        """States of the nodes with a pending message, after the GRU: float32[P, D]."""
        if not self.has_memory:
            return as_tensor(memory.pending_other)
        features_PD = self.edge_stats(as_tensor(memory.pending_features))
        out: Tensor = self.updater(memory, features_PD, self.gap())
        return out

    def over(self, memory: Memory, chunk: EdgeRows) -> AbstractContextManager[Tensor]:
        """`Memory.over` one canonical chunk with the present weights; yields `updated`, for
        `Memory.gather`."""
        return memory.over(chunk, self.updated)

    @torch.no_grad()
    def advance(self, memory: Memory, chunk: EdgeRows) -> None:
        """Advance memory over a chunk whose events are not scored."""
        with self.over(memory, chunk):
            pass

    def embed(self, inputs: LinkInputs, state_MD: Tensor) -> Tensor:
        """Embeddings of the U roots, float32[U, D], from the states of the M nodes of their
        neighborhood."""
        h_MD = self.encoder.start(inputs.node_M, state_MD, self.node_stats(inputs.node_MD))
        out: Tensor = self.encoder(h_MD, inputs.hops, self.edge_stats, self.gap())
        return out

    def neighbor_weights(self, inputs: LinkInputs, state_MD: Tensor) -> tuple[Tensor, ...]:
        """Attention weights of the U roots' neighbors, float32[U, K]: of the first hop, or for
        each window of time. An empty tuple for a model without attention."""
        h_MD = self.encoder.start(inputs.node_M, state_MD, self.node_stats(inputs.node_MD))
        out: tuple[Tensor, ...] = self.encoder.weights(
            h_MD, inputs.hops, self.edge_stats, self.gap()
        )
        return out

    def residual(self, z_UD: Tensor, inputs: LinkInputs, dropout: int | Tensor | None) -> Tensor:
        """The graph's part of each pair's logit: float32[E, C]. dropout: as in `forward`."""
        # Each root is projected once, however many pairs it is in.
        src_E1D = embedding(inputs.src_E, self.head_src(z_UD))[:, None]
        if self.head_set is not None:
            src_E1D = src_E1D + self.asked_set(inputs.facts_ECF[:, :1])
        hidden_ECD = (src_E1D + embedding(inputs.candidate_EC, self.head_dst(z_UD))).relu()
        if dropout is not None and self.settings.pair_facts:
            hidden_ECD = half_dropout(hidden_ECD, dropout, inputs.event_E)
        added = in_float32(self.head_out, hidden_ECD)[..., 0]
        return added if self.training else self.mask_new(added, inputs.facts_ECF)

    def feature_vectors(self, inputs: LinkInputs) -> tuple[Tensor, Tensor]:
        """The vectors of the U roots as sources and as destinations by their features: those of the
        match, then those of the score of new destinations. Zero columns for a model without."""
        if self.new_score is None:
            none = inputs.node_MD.new_zeros(len(inputs.hops[0].root_U), 0)
            return none, none
        # The one-hot of the node sets comes before the features.
        first = self.schema.all_node_columns[0].start
        has_M = (inputs.node_MD[:, first:] != 0).any(1)
        # Windows of time have the same roots; otherwise deeper hops have other roots.
        hops = inputs.hops if self.plan.window_us else inputs.hops[:1]
        near_UD, own_UD, count_U = root_features(self.node_stats(inputs.node_MD), has_M, hops)
        age_U = inputs.age_M[hops[0].root_U]
        new_src_UH, new_dst_UH = self.new_score.vectors(near_UD, count_U, own_UD, age_U)
        return (
            torch.cat([of_length_1(near_UD[:, first:]), new_src_UH], 1),
            torch.cat([of_length_1(own_UD[:, first:]), new_dst_UH], 1),
        )

    def with_features(self, logits_EC: Tensor, inputs: LinkInputs) -> Tensor:
        """Logits with the match of features of known destinations, and the score of new ones:
        float32[E, C]. Only for a model that has both."""
        assert self.feature_match is not None and self.new_score is not None
        src_UA, dst_UA = self.feature_vectors(inputs)
        own = src_UA.shape[1] - NEW_HIDDEN - 1
        match_EC = matches(inputs, src_UA[:, :own], dst_UA[:, :own])
        facts_ECF = self.fact_stats(inputs.facts_ECF)
        added: Tensor = self.feature_match(facts_ECF, match_EC)
        src_EH, dst_UH = embedding(inputs.src_E, src_UA[:, own:]), dst_UA[:, own:]

        # In training, all candidates of an event with a new destination are new. The binary loss
        # compares one true candidate with NUM_LEARNED negatives.
        if self.training:
            dst_ECH = embedding(inputs.candidate_EC, dst_UH)
            score_EC = self.new_score(facts_ECF, match_EC, src_EH[:, None], dst_ECH)
            is_new_E1 = inputs.is_new_E[:, None]
            return torch.where(is_new_E1, score_EC - LOG_NEGATIVES, logits_EC + added)

        # In scoring, few candidates are new.
        logits_EC = logits_EC + self.mask_new(added, inputs.facts_ECF)
        event_N, column_N = self.new_destinations.replaces(inputs.facts_ECF).nonzero(as_tuple=True)
        if len(event_N):
            at = event_N, column_N
            dst_NH = embedding(inputs.candidate_EC[at], dst_UH)
            logits_EC[at] += self.new_score(facts_ECF[at], match_EC[at], src_EH[event_N], dst_NH)
        return logits_EC

    def asked_set(self, facts_F: Tensor) -> Tensor:
        """The head's term for the edge set of facts [..., F]: [..., D]. Only for models of several
        edge sets."""
        assert self.head_set is not None
        out: Tensor = self.head_set(facts_F[..., -self.schema.num_edge_sets :])
        return out

    def head_logits(self, src_H: Tensor, dst_H: Tensor) -> Tensor:
        """The head's logit, [...], from its projections of sources and destinations, float32[...,
        H]."""
        out: Tensor = self.head_out((src_H + dst_H).relu())[..., 0]
        return out

    def projections(self, z_UD: Tensor, inputs: LinkInputs) -> tuple[Tensor, Tensor]:
        """The vectors of the U roots as sources and as destinations, which a server may cache: the
        head's projections, then `feature_vectors`. float32[U, D + columns of these] each."""
        src_UA, dst_UA = self.feature_vectors(inputs)
        return (
            torch.cat([self.head_src(z_UD), src_UA], 1),
            torch.cat([self.head_dst(z_UD), dst_UA], 1),
        )

    def residual_of(self, facts_RF: Tensor, src_RD: Tensor, dst_RD: Tensor) -> Tensor:
        """The logits without the part of the pair network, float32[R], from `projections` of
        each row's source and destination."""
        d = self.settings.dim
        src_RH, dst_RH = src_RD[:, :d], dst_RD[:, :d]
        if self.head_set is not None:
            src_RH = src_RH + self.asked_set(facts_RF)
        out = self.head_logits(src_RH, dst_RH)
        if self.feature_match is None or self.new_score is None:
            return self.mask_new(out, facts_RF)
        facts, own = self.fact_stats(facts_RF), slice(d, src_RD.shape[1] - NEW_HIDDEN - 1)
        match_R = (src_RD[:, own] * dst_RD[:, own]).sum(1)
        out = self.mask_new(out + self.feature_match(facts, match_R), facts_RF)

        # Usually few are new.
        new_N = self.new_destinations.replaces(facts_RF).nonzero()[:, 0]
        if len(new_N):
            src_NH, dst_NH = src_RD[new_N, own.stop :], dst_RD[new_N, own.stop :]
            out[new_N] = self.new_score(facts[new_N], match_R[new_N], src_NH, dst_NH)
        return out

    def mask_new(self, added: Tensor, facts: Tensor) -> Tensor:
        """Set the graph's part [...] to 0 for new destinations. facts: [..., F]."""
        if not self.settings.pair_facts:
            return added
        return added.masked_fill(self.new_destinations.replaces(facts), 0.0)

    def labels(self, inputs: LabelInputs, state_MD: Tensor) -> Tensor:
        """Outputs of the label heads, float32[L, T]; `predictions` turns them into labels."""
        assert self.label_head is not None
        # Without graph layers, labels are predicted from facts alone.
        num_roots = len(inputs.around.hops[0].root_U)
        z_UD = (
            self.embed(inputs.around, state_MD)
            if self.has_graph
            else state_MD.new_zeros(num_roots, 0)
        )
        facts_LF = self.fact_stats(inputs.facts_LF)
        return self.label_head.outputs(
            z_UD[inputs.node_L], facts_LF, inputs.history_LT, inputs.set_L
        )

    def pair_logits(self, facts_ECF: Tensor) -> Tensor:
        """Logits of the pair network: float32[E, C]; zeros for a model without pair facts."""
        if not self.settings.pair_facts:
            return facts_ECF.new_zeros(facts_ECF.shape[:-1])
        # bfloat16 would round the logits themselves to 8 bits.
        logits_EC = in_float32(self.pair[-1], self.pair[:-1](self.fact_stats(facts_ECF)))[..., 0]
        # In training a new destination is a negative like others, and its gradient moves the
        # weights.
        if self.training:
            return logits_EC
        out: Tensor = self.new_destinations(logits_EC, facts_ECF)
        return out

    def forward(
        self, inputs: LinkInputs, state_MD: Tensor, dropout: int | Tensor | None = None
    ) -> Tensor:
        """Logits of all candidates, float32[E, C]. dropout: a `dropout_key` in training, else
        None."""
        logits = self.pair_logits(inputs.facts_ECF)
        if self.has_graph:
            logits = logits + self.residual(self.embed(inputs, state_MD), inputs, dropout)
        if self.new_score is not None:
            logits = self.with_features(logits, inputs)
        return logits

    def optimizer(self, learning_rate: float) -> torch.optim.AdamW:
        """AdamW: pair network, label heads, match of features and score of new destinations at the
        full rate, the rest slower and with weight decay; without pair facts, everything at the full
        rate."""
        # On a GPU one kernel updates all weights, and a CUDA graph can capture it.
        on_gpu = self.device.type == "cuda"
        kernels: Any = {"fused": True, "capturable": True} if on_gpu else {"foreach": True}
        if not self.settings.pair_facts:
            return torch.optim.AdamW(
                self.parameters(), lr=learning_rate, weight_decay=0.0, **kernels
            )
        pair = list(self.pair.parameters())
        heads = [m for m in self.modules() if isinstance(m, LabelHead)]
        pair += [p for head in heads for p in head.net.parameters()]
        own_groups = ("pair.", "label_head.", MATCH, NEW_SCORE)
        rest = [p for n, p in self.named_parameters() if not n.startswith(own_groups)]

        # The pair network learns at the full rate, the graph's residual slower.
        groups = [{"params": pair, "lr": learning_rate, "weight_decay": 0.0}]
        if rest:
            groups.append(
                {"params": rest, "lr": DAMPED_RATE * learning_rate, "weight_decay": WEIGHT_DECAY}
            )
        # The later a part came, the later its group: a checkpoint names states by the parameter's
        # number.
        if heads:
            history = [p for head in heads for p in head.history.parameters()]
            groups.append({"params": history, "lr": learning_rate, "weight_decay": 0.0})
        if self.feature_match is not None:
            match = list(self.feature_match.parameters())
            groups.append({"params": match, "lr": learning_rate, "weight_decay": 0.0})
        if self.new_score is not None:
            score = list(self.new_score.parameters())
            groups.append({"params": score, "lr": learning_rate, "weight_decay": 0.0})
        return torch.optim.AdamW(groups, **kernels)

    def gap(self) -> Tensor:
        """The unit of time differences, microseconds, float64."""
        return torch.where(self.gap_us > 0, self.gap_us, 1.0)


def in_float32(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer in float32, also within `torch.autocast`."""
    with torch.autocast(x.device.type, enabled=False):
        out: Tensor = layer(x.float())
    return out


def build_model(
    settings: ModelSettings, schema: Schema, seed: int, device: str | torch.device = "cpu"
) -> LinkModel:
    """A model with weights drawn from `seed`, the same on any device."""
    torch.manual_seed(seed)
    return LinkModel(settings, schema).to(device)


def link_loss(
    logits_EC: Tensor,
    weight_E: Tensor,
    is_candidate_EC: Tensor | None = None,
    log_draws_EC: Tensor | None = None,
) -> Tensor:
    """Sum over events of the softmax cross-entropy over the candidates (the first is true) plus the
    binary cross-entropy, weighted.

    The binary part makes scores of different sources comparable, which average precision requires.
    is_candidate_EC: bool, the columns that count; None counts all, with the same bits as True
    everywhere. log_draws_EC: as in `LinkInputs`, subtracted from the logits.
    """
    if log_draws_EC is not None:
        logits_EC = logits_EC - log_draws_EC
    if is_candidate_EC is None:
        is_candidate_EC = torch.ones_like(logits_EC, dtype=torch.bool)

    # Softmax: which candidate is the true one.
    softmax = -logits_EC.masked_fill(~is_candidate_EC, -torch.inf).log_softmax(1)[:, 0]

    # Binary: whether each candidate is true, as the mean over the columns that count.
    target = torch.zeros_like(logits_EC)
    target[:, 0] = 1.0
    binary_EC = nn.functional.binary_cross_entropy_with_logits(logits_EC, target, reduction="none")
    share_E = is_candidate_EC.sum(1) / logits_EC.shape[1]
    binary = binary_EC.masked_fill(~is_candidate_EC, 0.0).mean(1) / share_E
    return ((softmax + binary) * weight_E).sum()

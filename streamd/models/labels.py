"""Node labels: the inputs of their predictions, and the heads that make them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, smooth_l1_loss

from streamd.events import Float32, Int64
from streamd.gpu.copies import to_device
from streamd.graph.label_rows import label_rows
from streamd.graph.live import LiveGraph
from streamd.graph.neighborhood import SamplingPlan
from streamd.models.inference.standard_values import LABEL_HIDDEN as HIDDEN
from streamd.models.inference.standard_values import LEAST_SHARE
from streamd.models.inputs import LinkInputs, link_inputs
from streamd.models.schema_inputs import SchemaInput
from streamd.models.standardize import RunningStandardizer
from streamd.settings.loading import ModelSettings


@dataclass(frozen=True)
class LabelInputs:
    """The inputs of L labels.

    around: the neighborhoods of their U distinct nodes, without events. node_L: int64, indices of
    the labels' nodes among these. set_L: int64, their node sets, on the host. facts_LF: float32,
    facts of the pair of the node and itself, of which age, degree and popularity have information.
    history_LT: float32, the mean of the node's labels before this one. target_LT: float32.
    """

    around: LinkInputs
    node_L: Tensor
    set_L: Int64
    facts_LF: Tensor
    history_LT: Tensor
    target_LT: Tensor


def label_inputs(
    live: LiveGraph,
    plan: SamplingPlan,
    nodes_U: Int64,
    set_U: Int64,
    node_L: Int64,
    target_LT: Float32,
    before_event: int,
    query_us: int,
) -> LabelInputs:
    """Make the inputs of L labels. node_L: int64[L], indices of their nodes in nodes_U. target_LT:
    float32[L, T]. Other arguments as in `label_rows`."""
    rows = label_rows(live, plan, nodes_U, set_U, before_event, query_us)
    none = np.zeros((0, 1), np.int64)
    no_facts = np.zeros((0, 1, rows.facts_UF.shape[-1]), np.float32)
    return LabelInputs(
        link_inputs(none[:, 0], no_facts, none[:, 0], none, rows.around),
        torch.from_numpy(node_L),
        set_U[node_L],
        torch.from_numpy(rows.facts_UF[node_L]),
        torch.from_numpy(rows.history_UT[node_L]),
        torch.from_numpy(np.ascontiguousarray(target_LT)),
    )


def shares(target_LT: Tensor) -> Tensor:
    """Convert amounts per class to shares that add up to 1; a row of zeros stays zero."""
    share = target_LT.clamp_min(0)
    return share / share.sum(1, keepdim=True).clamp_min(1e-9)


class LabelHead(nn.Module):
    """The mean of a node's last labels, plus a correction by a network over its embedding and
    facts.

    `model.labels` names the kind of target: classes, as one number that is 0 or 1 or as one share
    per class, or quantities, which are standardised by running statistics.
    """

    def __init__(
        self, settings: ModelSettings, label_dim: int, embedding_dim: int, num_facts: int
    ) -> None:
        super().__init__()
        self.task = settings.labels
        self.label_dim = label_dim
        self.embedding_dim = embedding_dim
        self.target_stats = RunningStandardizer(label_dim)
        self.net = nn.Sequential(
            nn.Linear(embedding_dim + num_facts, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, label_dim)
        )
        # A separate module, so that it comes after the weights of older releases.
        self.history = nn.ParameterList([torch.ones(label_dim)])

    def schema_inputs(self) -> dict[str, SchemaInput]:
        return {"net.0.weight": SchemaInput("facts", self.embedding_dim)}

    def forward(self, z_LD: Tensor, facts_LF: Tensor, history_LT: Tensor) -> Tensor:
        """float32[L, T]: logits of classes, or standardised quantities. facts_LF: standardised."""
        correction: Tensor = self.net(torch.cat([z_LD, facts_LF], 1))
        weight_T: Tensor = self.history[0]
        return correction + weight_T * self._as_output(history_LT)

    def _as_output(self, target_LT: Tensor) -> Tensor:
        """Targets as outputs of the head: the outputs whose prediction is the target."""
        if self.task == "regression":
            standard: Tensor = self.target_stats(target_LT)
            return standard
        if self.label_dim == 1:
            return target_LT.clamp(LEAST_SHARE, 1 - LEAST_SHARE).logit()
        return shares(target_LT).clamp_min(LEAST_SHARE).log()

    def loss(self, out_LT: Tensor, target_LT: Tensor) -> Tensor:
        """Mean over labels: cross-entropy, or Huber loss of standardised quantities."""
        if self.task == "regression":
            return smooth_l1_loss(out_LT, self.target_stats(target_LT))
        if self.label_dim == 1:
            return binary_cross_entropy_with_logits(out_LT, target_LT.clamp(0, 1))

        return -(shares(target_LT) * out_LT.log_softmax(1)).sum(1).mean()

    def predict(self, out_LT: Tensor) -> Tensor:
        """Probabilities of classes, or quantities in their original unit: float32[L, T]."""
        if self.task == "regression":
            # From standardised values back to the targets' unit.
            return out_LT * self.target_stats.var.sqrt().float() + self.target_stats.mean.float()
        return out_LT.sigmoid() if self.label_dim == 1 else out_LT.softmax(1)

    def constant(self, count: int) -> Tensor:
        """The mean target so far, once for each of `count` labels: the baseline that a head must
        beat."""
        return self.target_stats.mean.float().expand(count, -1)


class LabelHeads(LabelHead):
    """A head for each node set: the node's set selects the head of its label. The object itself is
    the head of the first set."""

    def __init__(
        self,
        settings: ModelSettings,
        label_dim: int,
        embedding_dim: int,
        num_facts: int,
        num_sets: int,
    ) -> None:
        super().__init__(settings, label_dim, embedding_dim, num_facts)
        self.others = nn.ModuleList(
            LabelHead(settings, label_dim, embedding_dim, num_facts) for _ in range(num_sets - 1)
        )

    def _each(self, set_L: Int64, device: torch.device) -> Iterator[tuple[LabelHead, Tensor]]:
        """Yield the head of each node set that has labels, and the indices of these labels on a
        device. They are computed on the host, which would otherwise wait for the device."""
        for number, head in enumerate((self, *self.others)):
            place = np.flatnonzero(set_L == number)
            if len(place):
                yield head, to_device(place, device)

    def outputs(self, z_LD: Tensor, facts_LF: Tensor, history_LT: Tensor, set_L: Int64) -> Tensor:
        """`forward` of each label's head: float32[L, T]. set_L: int64 node sets."""
        if not self.others:
            out: Tensor = self(z_LD, facts_LF, history_LT)
            return out
        out = torch.zeros_like(history_LT)
        for head, at in self._each(set_L, out.device):
            out = out.index_copy(0, at, head(z_LD[at], facts_LF[at], history_LT[at]))
        return out

    def losses(self, out_LT: Tensor, target_LT: Tensor, set_L: Int64) -> Tensor:
        """The mean of `loss` over all labels."""
        if not self.others:
            return self.loss(out_LT, target_LT)
        parts = [
            head.loss(out_LT[at], target_LT[at]) * len(at)
            for head, at in self._each(set_L, out_LT.device)
        ]
        return torch.stack(parts).sum() / len(set_L)

    def predictions(self, out_LT: Tensor, set_L: Int64) -> Tensor:
        """`predict` by each label's head: float32[L, T]."""
        if not self.others:
            return self.predict(out_LT)
        out = torch.zeros_like(out_LT)
        for head, at in self._each(set_L, out.device):
            out[at] = head.predict(out_LT[at])
        return out

    def constants(self, set_L: Int64) -> Tensor:
        """`constant` of each label's node set: float32[L, T]."""
        if not self.others:
            return self.constant(len(set_L))
        out = self.target_stats.mean.new_zeros((len(set_L), self.label_dim)).float()
        for head, at in self._each(set_L, out.device):
            out[at] = head.constant(len(at))
        return out

    def observe(self, target_LT: Tensor, set_L: Int64) -> None:
        """Update the running statistics of each set's targets."""
        for head, at in self._each(set_L, target_LT.device):
            head.target_stats.update(target_LT[at])

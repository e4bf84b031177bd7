"""The interface of a loaded version as a server uses it: its weights no longer change."""

from contextlib import AbstractContextManager
from typing import Protocol

from streamd.events import Float32, Int64, Schema
from streamd.graph.label_rows import LabelRows
from streamd.graph.neighborhood import Neighborhood
from streamd.models.device_arrays import Array
from streamd.models.inference.standard_values import NEW_HIDDEN
from streamd.models.memory.edge_rows import EdgeRows
from streamd.models.memory.memory import Memory
from streamd.settings.loading import ModelSettings


class Inference(Protocol):
    """A model for answers. Arrays that its methods exchange with one another and with memory are on
    the memory's device: numpy arrays on the host, torch tensors on a GPU. Arrays from the graph,
    and results for callers, are numpy arrays."""

    settings: ModelSettings
    schema: Schema

    @property
    def device(self) -> str:
        """The device of its arrays, "cpu" or a GPU."""
        ...

    @property
    def has_labels(self) -> bool:
        """Whether it predicts labels."""
        ...

    def advance(self, memory: Memory, chunk: EdgeRows) -> None:
        """Advance memory over one canonical chunk."""
        ...

    def updated(self, memory: Memory) -> Array:
        """The states of the nodes with a pending message, with the message applied: float32[P,
        D]."""
        ...

    @property
    def widths(self) -> tuple[int, int, int]:
        """Widths of the three arrays of `embed`."""
        ...

    def embed(
        self, memory: Memory, updated_PD: Array, around: Neighborhood
    ) -> tuple[Array, Array, Array]:
        """The embeddings of a neighborhood's U roots, and the roots' vectors as sources and as
        destinations, by which pairs are scored: float32[U, D] each, with the widths of `widths`.
        updated_PD: from `updated` of the same memory."""
        ...

    def logits(self, facts_RF: Float32, src_RD: Array, dst_RD: Array) -> Float32:
        """The logits of R pairs: float32[R]. facts_RF: raw. src_RD, dst_RD: the vectors from
        `embed` of each pair's source and destination; a model that scores by facts alone ignores
        them."""
        ...

    def pair_logits(self, facts_RF: Float32) -> Float32:
        """Logits from facts alone: float32[R]; zeros for a model without pair facts."""
        ...

    def residual(self, facts_RF: Float32, src_RD: Array, dst_RD: Array) -> Float32:
        """The graph's part of the logits: float32[R]. Arguments as in `logits`."""
        ...

    def forget_rate(self) -> None:
        """Score new destinations by the weights alone from now on, without the version's rate."""
        ...

    def keeping_rate(self) -> AbstractContextManager[None]:
        """Undo a `forget_rate` that is called inside the block."""
        ...

    @property
    def mean_facts(self) -> Float32:
        """The mean of each fact over the version's training data, float32[F]."""
        ...

    def neighbor_weights(
        self, memory: Memory, updated_PD: Array, around: Neighborhood
    ) -> tuple[Float32, ...]:
        """Attention weights of the neighbors of the U roots: float32[U, K] for the first hop, or
        one such array for each time window. Empty for a model without attention."""
        ...

    def labels(self, memory: Memory, updated_PD: Array, rows: LabelRows, set_U: Int64) -> Float32:
        """Predict labels: probabilities of classes, or quantities in their original unit,
        float32[U, T]. set_U: int64[U], node sets of the nodes in `rows`."""
        ...


def vector_widths(
    settings: ModelSettings, schema: Schema, matches_features: bool, scores_new: bool
) -> tuple[int, int, int]:
    """`Inference.widths` of a model. matches_features, scores_new: whether the model has a match of
    node features, and a score of new destinations."""
    # Leave out the one-hot of the node sets.
    columns = schema.node_feature_dim - schema.all_node_columns[0].start
    both = settings.dim + (columns if matches_features else 0)
    both += NEW_HIDDEN + 1 if scores_new else 0
    return settings.dim, both, both

"""The interface of a loaded version for answering: its weights no longer change."""

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
    """Arrays that are passed between methods, and to memory, are on the memory's device: numpy's on
    the host, torch's on a GPU. Arrays from the graph and results for callers are numpy's."""

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
        """States of the nodes with a pending message, after the message is applied: float32[P,
        D]."""
        ...

    @property
    def widths(self) -> tuple[int, int, int]:
        """The widths of the three arrays that `embed` returns."""
        ...

    def embed(
        self, memory: Memory, updated_PD: Array, around: Neighborhood
    ) -> tuple[Array, Array, Array]:
        """The embeddings of a neighborhood's U roots, and their vectors as sources and as
        destinations, of which a pair is scored: float32[U, D] each, of `widths`. updated_PD: of the
        same memory."""
        ...

    def logits(self, facts_RF: Float32, src_RD: Array, dst_RD: Array) -> Float32:
        """Logit per row, float32[R], from facts and the vectors by `embed` of each row's source
        and destination. A model that scores by facts alone ignores the vectors."""
        ...

    def pair_logits(self, facts_RF: Float32) -> Float32:
        """Logits from facts alone: float32[R]; zeros for a model without pair facts."""
        ...

    def residual(self, facts_RF: Float32, src_RD: Array, dst_RD: Array) -> Float32:
        """The graph's part of the logits: float32[R]. Arguments as of `logits`."""
        ...

    def forget_rate(self) -> None:
        """From now on score new destinations by the weights alone, not by the version's rate."""
        ...

    def keeping_rate(self) -> AbstractContextManager[None]:
        """Undo `forget_rate` after a block, if it was called within it."""
        ...

    @property
    def mean_facts(self) -> Float32:
        """The mean of each fact over the version's training data, float32[F]."""
        ...

    def neighbor_weights(
        self, memory: Memory, updated_PD: Array, around: Neighborhood
    ) -> tuple[Float32, ...]:
        """Attention weights of the U roots' neighbors, float32[U, K]: of the first hop, or for
        each window of time. An empty tuple for a model without attention."""
        ...

    def labels(self, memory: Memory, updated_PD: Array, rows: LabelRows, set_U: Int64) -> Float32:
        """Probabilities of classes, or quantities in their original unit, float32[U, T], of nodes
        of the node sets set_U."""
        ...


def vector_widths(
    settings: ModelSettings, schema: Schema, matches_features: bool, scores_new: bool
) -> tuple[int, int, int]:
    """`Inference.widths` of a model. matches_features, scores_new: whether it has a match of node
    features, and a score of new destinations."""
    # The one-hot of the node sets is no feature.
    columns = schema.node_feature_dim - schema.all_node_columns[0].start
    both = settings.dim + (columns if matches_features else 0)
    both += NEW_HIDDEN + 1 if scores_new else 0
    return settings.dim, both, both

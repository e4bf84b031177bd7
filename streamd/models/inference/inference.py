"""What a server answers by: the weights of a version, which do not change any more."""

from typing import Protocol

from streamd.events import Float32, Int64, Schema
from streamd.graph.label_rows import LabelRows
from streamd.graph.neighborhood import Neighborhood
from streamd.models.device_arrays import Array
from streamd.models.memory.edge_rows import EdgeRows
from streamd.models.memory.memory import Memory
from streamd.settings.loading import ModelSettings


class Inference(Protocol):
    """Arrays that are handed from one method to another, and to memory, lie where memory does:
    numpy's on the host, torch's on a GPU. What comes from the graph, and what goes to callers, is
    numpy's."""

    settings: ModelSettings
    schema: Schema

    @property
    def device(self) -> str:
        """Where it computes, "cpu" or a GPU."""
        ...

    @property
    def has_labels(self) -> bool:
        """Whether it predicts labels."""
        ...

    def advance(self, memory: Memory, chunk: EdgeRows) -> None:
        """Carry memory over one canonical chunk."""
        ...

    def updated(self, memory: Memory) -> Array:
        """States of the nodes with a pending message once it is applied: float32[P, D]."""
        ...

    def embed(self, memory: Memory, updated_PD: Array, around: Neighborhood) -> Array:
        """float32[3, U, D]: the embeddings of a neighbourhood's roots, and what the head makes of
        them as sources and as destinations. updated_PD: of the same memory."""
        ...

    def logits(self, facts_RF: Float32, src_RD: Array, dst_RD: Array) -> Float32:
        """Logit per row, float32[R], of facts and what `embed` says of each row's source and
        destination, which nobody looks at where pairs are scored by their facts alone."""
        ...

    def pair_logits(self, facts_RF: Float32) -> Float32:
        """What the facts alone say: float32[R]; zeros where the model has no pair facts."""
        ...

    def residual(self, facts_RF: Float32, src_RD: Array, dst_RD: Array) -> Float32:
        """What the graph adds to that: float32[R]. Arguments as of `logits`."""
        ...

    def forget_rate(self) -> None:
        """Rank new destinations by the weights alone from now on, not by the version's rate."""
        ...

    @property
    def mean_facts(self) -> Float32:
        """The mean of each fact over what the version was trained on, float32[F]."""
        ...

    def neighbor_weights(
        self, memory: Memory, updated_PD: Array, around: Neighborhood
    ) -> tuple[Float32, ...]:
        """How much each neighbour of the U roots counts by attention, float32[U, K] a hop: of the
        first hop, or of each window of time. An empty tuple where there is no attention."""
        ...

    def labels(self, memory: Memory, updated_PD: Array, rows: LabelRows, set_U: Int64) -> Float32:
        """Probabilities of classes, or quantities in their own unit, float32[U, T], of nodes of the
        node sets set_U."""
        ...

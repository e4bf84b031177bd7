"""The table of architectures: all that tells one model from another, by `model.name`.

No other file compares a model's name. A new architecture is a file with its layer and a row here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from torch import Tensor

from streamd.events import Float32
from streamd.graph.draws import Draw
from streamd.graph.neighborhood import Neighborhood, SamplingPlan
from streamd.graph.strategies import StrategyName
from streamd.models.dysat import DySATEncoder, windows_of_time
from streamd.models.encoder import Encoder, LayerKind
from streamd.models.gat import GATLayer
from streamd.models.gcn import GCNEncoder, GCNLayer
from streamd.models.memory import Memory
from streamd.models.numpy_tgn import NumpyTGN
from streamd.models.pair import no_neighbors
from streamd.models.sage import SAGELayer
from streamd.models.tgat import TGATLayer
from streamd.models.tgn import TGNLayer
from streamd.settings import ModelName, ModelSettings

if TYPE_CHECKING:
    from streamd.models.link import LinkModel

Plan = Callable[[ModelSettings], SamplingPlan]
"""How the neighbours that a model looks at are sampled."""
COMMON = frozenset(
    {"name", "pair_facts", "labels", "memory_chunk", "max_pairs", "half_lives_seconds"}
)
"""Settings that every architecture uses: names of fields of `ModelSettings`."""


class FastInference(Protocol):
    """What answers for a few nodes on a CPU in the stead of the `LinkModel` it was made of, whose
    weights do not change any more. The same numbers, to float32's rounding."""

    def embed(self, memory: Memory, updated_PD: Tensor, around: Neighborhood) -> Float32:
        """float32[3, U, D]: the roots' embeddings, and what the head makes of them as sources and
        as destinations."""
        ...

    def logits(self, facts_RF: Float32, src_RD: Float32, dst_RD: Float32) -> Float32:
        """Logit per row, float32[R]."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A row of the table.

    plan: which neighbours are sampled. settings: names of the fields of `ModelSettings` that it
    uses beyond COMMON; others may be set and change nothing, which the trainer and the doctor say.
    layer: its graph layer, None for none; num_layers: how many; encoder: how
    they are put together. has_memory: whether nodes have a state that moves with the log;
    static: whether it asks nothing of time, so that it may learn the log as a static graph.
    fast_inference: makes what answers on a CPU in the model's stead, None where the model itself
    does. score: "vectors", by an embedding of each end, which may be kept and searched by; "facts",
    by the facts about the pair alone. An architecture that sees both ends at once would be a third:
    `LinkModel.forward` calls it, and the server keeps nothing of it.
    """

    plan: Plan
    settings: frozenset[str]
    layer: LayerKind | None
    num_layers: int
    encoder: type[Encoder] = Encoder
    has_memory: bool = False
    static: bool = False
    fast_inference: "Callable[[LinkModel], FastInference] | None" = None
    score: Literal["facts", "vectors"] = "vectors"


def architecture_of(settings: ModelSettings) -> Architecture:
    """The row that settings name."""
    return ARCHITECTURES[settings.name]


def unused_settings(settings: ModelSettings) -> list[str]:
    """Settings that were changed from their default and change nothing in the architecture they
    name, as "model.snapshots"."""
    used = COMMON | architecture_of(settings).settings
    return [
        f"model.{name}"
        for name, field in ModelSettings.model_fields.items()
        if name not in used and getattr(settings, name) != field.default
    ]


def _hops(strategy: StrategyName, number: int) -> Plan:
    """`model.neighbors` a root and hop."""

    def plan(settings: ModelSettings) -> SamplingPlan:
        # A seed for each hop: a node that is a root in two hops would get the same draws in both.
        draw = Draw(direction=settings.direction, fanout=settings.neighbors, strategy=strategy)
        return SamplingPlan(hops=tuple(replace(draw, seed=hop) for hop in range(number)))

    return plan


ARCHITECTURES: Mapping[ModelName, Architecture] = {
    "tgn": Architecture(
        plan=_hops("recent", 1),
        settings=frozenset({"dim", "time_dim", "heads", "neighbors", "direction", "id_rows"}),
        layer=TGNLayer,
        num_layers=1,
        has_memory=True,
        fast_inference=NumpyTGN,
    ),
    # Two layers look two hops far, and so do those of sage and gat.
    "tgat": Architecture(
        plan=_hops("uniform", 2),
        settings=frozenset({"dim", "time_dim", "heads", "neighbors", "direction", "id_rows"}),
        layer=TGATLayer,
        num_layers=2,
    ),
    # A hop is a window of time here: one layer serves all of them.
    "dysat": Architecture(
        plan=windows_of_time,
        settings=frozenset(
            {"dim", "heads", "neighbors", "direction", "id_rows", "snapshots", "snapshot_seconds"}
        ),
        layer=GATLayer,
        num_layers=1,
        encoder=DySATEncoder,
    ),
    "sage": Architecture(
        plan=_hops("recent", 2),
        settings=frozenset({"dim", "neighbors", "direction", "id_rows"}),
        layer=SAGELayer,
        num_layers=2,
        static=True,
    ),
    "gat": Architecture(
        plan=_hops("recent", 2),
        settings=frozenset({"dim", "heads", "neighbors", "direction", "id_rows"}),
        layer=GATLayer,
        num_layers=2,
        static=True,
    ),
    # Two layers, and a third hop that only counts the degrees of what the second reached.
    "gcn": Architecture(
        plan=_hops("recent", 3),
        settings=frozenset({"dim", "neighbors", "direction", "id_rows"}),
        layer=GCNLayer,
        num_layers=2,
        encoder=GCNEncoder,
        static=True,
    ),
    "pair": Architecture(
        plan=no_neighbors, settings=frozenset(), layer=None, num_layers=0, score="facts"
    ),
}

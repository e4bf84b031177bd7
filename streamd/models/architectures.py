"""The table of architectures: what tells one model from another, by `model.name`, without torch.

No other file compares a model's name. A new architecture is a row here, and where it looks at the
graph a file with its layer and a row in `streamd.models.layers.table`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from streamd.graph.blocks.draws import Draw
from streamd.graph.blocks.strategies import StrategyName
from streamd.graph.neighborhood import SamplingPlan
from streamd.settings.loading import ModelName, ModelSettings

Plan = Callable[[ModelSettings], SamplingPlan]
"""How the neighbours that a model looks at are sampled."""
COMMON = frozenset(
    {"name", "pair_facts", "labels", "memory_chunk", "max_pairs", "half_lives_seconds"}
)
"""Settings that every architecture uses: names of fields of `ModelSettings`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A row of the table.

    plan: which neighbours are sampled. settings: names of the fields of `ModelSettings` that it
    uses beyond COMMON; others may be set and change nothing, which the trainer and the doctor say.
    has_memory: whether nodes have a state that moves with the log;
    static: whether it asks nothing of time, so that it may learn the log as a static graph.
    in_numpy: whether `streamd.models.inference.numpy_model` answers for it on a CPU, so that a
    server needs no torch. score: "vectors", by an embedding of each end, which may be kept and
    searched by; "facts", by the facts about the pair alone. An architecture that sees both ends at
    once would be a third: `LinkModel.forward` calls it, and the server keeps nothing of it.
    """

    plan: Plan
    settings: frozenset[str]
    has_memory: bool = False
    static: bool = False
    in_numpy: bool = False
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


def _windows_of_time(settings: ModelSettings) -> SamplingPlan:
    """A hop for each window of time, the newest first, all of the same roots."""
    draw = Draw(direction=settings.direction, fanout=settings.neighbors)
    return SamplingPlan(
        hops=(draw,) * settings.snapshots, window_us=settings.snapshot_seconds * 1_000_000
    )


def _no_neighbors(settings: ModelSettings) -> SamplingPlan:
    """The roots alone."""
    return SamplingPlan(hops=(Draw(direction=settings.direction, fanout=0),))


ARCHITECTURES: Mapping[ModelName, Architecture] = {
    "tgn": Architecture(
        plan=_hops("recent", 1),
        settings=frozenset({"dim", "time_dim", "heads", "neighbors", "direction", "id_rows"}),
        has_memory=True,
        in_numpy=True,
    ),
    # Two layers look two hops far, and so do those of sage and gat.
    "tgat": Architecture(
        plan=_hops("uniform", 2),
        settings=frozenset({"dim", "time_dim", "heads", "neighbors", "direction", "id_rows"}),
    ),
    "dysat": Architecture(
        plan=_windows_of_time,
        settings=frozenset(
            {"dim", "heads", "neighbors", "direction", "id_rows", "snapshots", "snapshot_seconds"}
        ),
    ),
    "sage": Architecture(
        plan=_hops("recent", 2),
        settings=frozenset({"dim", "neighbors", "direction", "id_rows"}),
        static=True,
    ),
    "gat": Architecture(
        plan=_hops("recent", 2),
        settings=frozenset({"dim", "heads", "neighbors", "direction", "id_rows"}),
        static=True,
    ),
    # The third hop only counts the degrees of what the second reached.
    "gcn": Architecture(
        plan=_hops("recent", 3),
        settings=frozenset({"dim", "neighbors", "direction", "id_rows"}),
        static=True,
    ),
    "pair": Architecture(plan=_no_neighbors, settings=frozenset(), in_numpy=True, score="facts"),
}

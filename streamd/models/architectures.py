"""The table of architectures: what tells one model from another, by `model.name`, without torch.

No other file compares a model's name. A new architecture is a row here, and where it looks at the
graph a file with its layer and a row in `streamd.models.layers.table`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal

from streamd.errors import SettingsError
from streamd.graph.blocks.draws import Draw
from streamd.graph.blocks.strategies import StrategyName
from streamd.graph.neighborhood import SamplingPlan
from streamd.settings.loading import MODEL_PLUGINS, ModelName, ModelSettings

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


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPlugin:
    """A model of another package, which names it in the entry points of the group
    `streamd.models`.

    architecture: its row. layer, number, encoder: as of `GraphLayers`; encoder None for the one
    that architectures share. Raises: ValueError if it is to be answered in numpy or by facts alone.
    """

    architecture: Architecture
    layer: Any
    number: int = 1
    encoder: Any = None

    def __post_init__(self) -> None:
        if self.architecture.in_numpy or self.architecture.score != "vectors":
            raise ValueError("a plug-in has layers in torch, and scores by vectors")


def architecture_of(settings: ModelSettings) -> Architecture:
    """The row that settings name. Raises: SettingsError as `plugin_of`."""
    row = ARCHITECTURES.get(settings.name)
    return plugin_of(settings.name).architecture if row is None else row


@cache
def plugin_of(name: str) -> ModelPlugin:
    """The plug-in of a name. Raises: SettingsError if it is not installed or cannot be loaded."""
    found = list(entry_points(group=MODEL_PLUGINS, name=name))
    if len(found) != 1:
        problem = "is installed by several packages" if found else "is not installed"
        raise SettingsError(
            f"The model plug-in {name!r} {problem}.",
            f"install one package with an entry point {name!r} in the group {MODEL_PLUGINS!r}.",
        )
    try:
        plugin = found[0].load()
    except (ImportError, AttributeError) as error:
        raise SettingsError(
            f"The model plug-in {name!r} ({found[0].value}) cannot be loaded: {error}.",
            "install what it imports, or correct its entry point.",
        ) from None
    if not isinstance(plugin, ModelPlugin):
        raise SettingsError(
            f"The model plug-in {name!r} ({found[0].value}) is a {type(plugin).__name__}.",
            "its entry point must name a streamd.models.ModelPlugin.",
        )
    return plugin


def unused_settings(settings: ModelSettings) -> list[str]:
    """Settings that were changed from their default and change nothing in the architecture they
    name, as "model.snapshots"."""
    used = COMMON | architecture_of(settings).settings
    return [
        f"model.{name}"
        for name, field in ModelSettings.model_fields.items()
        if name not in used and getattr(settings, name) != field.default
    ]


def hops(strategy: StrategyName, number: int) -> Plan:
    """A plan of so many hops, in each `model.neighbors` of every root."""

    def plan(settings: ModelSettings) -> SamplingPlan:
        # A seed for each hop: a node that is a root in two hops would get the same draws in both.
        draw = Draw(direction=settings.direction, fanout=settings.neighbors, strategy=strategy)
        return SamplingPlan(hops=tuple(replace(draw, seed=hop) for hop in range(number)))

    return plan


def windows_of_time(settings: ModelSettings) -> SamplingPlan:
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
        plan=hops("recent", 1),
        settings=frozenset({"dim", "time_dim", "heads", "neighbors", "direction", "id_rows"}),
        has_memory=True,
        in_numpy=True,
    ),
    # Two layers look two hops far, and so do those of sage and gat.
    "tgat": Architecture(
        plan=hops("uniform", 2),
        settings=frozenset({"dim", "time_dim", "heads", "neighbors", "direction", "id_rows"}),
    ),
    "dysat": Architecture(
        plan=windows_of_time,
        settings=frozenset(
            {"dim", "heads", "neighbors", "direction", "id_rows", "snapshots", "snapshot_seconds"}
        ),
    ),
    "sage": Architecture(
        plan=hops("recent", 2),
        settings=frozenset({"dim", "neighbors", "direction", "id_rows"}),
        static=True,
    ),
    "gat": Architecture(
        plan=hops("recent", 2),
        settings=frozenset({"dim", "heads", "neighbors", "direction", "id_rows"}),
        static=True,
    ),
    # The third hop only counts the degrees of what the second reached.
    "gcn": Architecture(
        plan=hops("recent", 3),
        settings=frozenset({"dim", "neighbors", "direction", "id_rows"}),
        static=True,
    ),
    "pair": Architecture(plan=_no_neighbors, settings=frozenset(), in_numpy=True, score="facts"),
}

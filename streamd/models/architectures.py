"""The table of architectures by `model.name`, without torch.

No other file compares `model.name`. A new architecture needs a row here and, if it samples
neighbors, a file with its layer and a row in `streamd.models.layers.table`.
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
"""Makes the sampling plan of a model from its settings."""
COMMON = frozenset(
    {"name", "pair_facts", "labels", "memory_chunk", "max_pairs", "half_lives_seconds"}
)
"""Settings that every architecture uses: names of fields of `ModelSettings`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A row of the table.

    Args:
        plan: Callable, makes the sampling plan from the settings.
        settings: frozenset[str], names of the fields of `ModelSettings` that it uses in addition to
            COMMON. Other fields have no effect; trainer and doctor report them if they are set.
        has_memory: bool, whether nodes have a state that follows the log. Default False.
        static: bool, whether it ignores time, so that it can be trained on the log as a static
            graph. Default False.
        in_numpy: bool, whether `streamd.models.inference.numpy_model` implements it, so that a
            server needs no torch. Default False.
        score: str, "vectors": a pair is scored by the embeddings of its nodes, which a server can
            cache and search; "facts": by pair facts alone. Default "vectors".
    """

    plan: Plan
    settings: frozenset[str]
    has_memory: bool = False
    static: bool = False
    in_numpy: bool = False
    score: Literal["facts", "vectors"] = "vectors"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPlugin:
    """A model of another package, which registers it as an entry point in the group
    `streamd.models`.

    Args:
        architecture: Architecture, its row of the table.
        layer, number, encoder: as in `GraphLayers`. Default number 1, and encoder None for the
            encoder that the built-in architectures share.

    Raises:
        ValueError: the architecture has `in_numpy`, or scores by facts.
    """

    architecture: Architecture
    layer: Any
    number: int = 1
    encoder: Any = None

    def __post_init__(self) -> None:
        if self.architecture.in_numpy or self.architecture.score != "vectors":
            raise ValueError("a plug-in has layers in torch: set in_numpy=False, score='vectors'")


def architecture_of(settings: ModelSettings) -> Architecture:
    """The row of `settings.name`, from the table or a plug-in. Raises: SettingsError, as in
    `plugin_of`."""
    row = ARCHITECTURES.get(settings.name)
    return plugin_of(settings.name).architecture if row is None else row


@cache
def plugin_of(name: str) -> ModelPlugin:
    """Load the plug-in with a name. Raises: SettingsError if no package or several packages have
    it, if it cannot be loaded, or if it is no `ModelPlugin`."""
    found = list(entry_points(group=MODEL_PLUGINS, name=name))
    # One installed package must have the name.
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
            "install the packages that it imports, or correct its entry point.",
        ) from None
    if not isinstance(plugin, ModelPlugin):
        raise SettingsError(
            f"The model plug-in {name!r} ({found[0].value}) is a {type(plugin).__name__}.",
            "its entry point must name a streamd.models.ModelPlugin.",
        )
    return plugin


def unused_settings(settings: ModelSettings) -> list[str]:
    """The settings, such as "model.snapshots", that differ from their default although the
    architecture ignores them."""
    used = COMMON | architecture_of(settings).settings
    return [
        f"model.{name}"
        for name, field in ModelSettings.model_fields.items()
        if name not in used and getattr(settings, name) != field.default
    ]


def hops(strategy: StrategyName, number: int) -> Plan:
    """A plan of `number` hops, each with `model.neighbors` neighbors of every root."""

    def plan(settings: ModelSettings) -> SamplingPlan:
        # Each hop has another seed, so that a root of two hops has different draws in both.
        draw = Draw(direction=settings.direction, fanout=settings.neighbors, strategy=strategy)
        return SamplingPlan(hops=tuple(replace(draw, seed=hop) for hop in range(number)))

    return plan


def windows_of_time(settings: ModelSettings) -> SamplingPlan:
    """A plan with one hop per window of time, the newest first, all with the same roots."""
    draw = Draw(direction=settings.direction, fanout=settings.neighbors)
    return SamplingPlan(
        hops=(draw,) * settings.snapshots, window_us=settings.snapshot_seconds * 1_000_000
    )


def _no_neighbors(settings: ModelSettings) -> SamplingPlan:
    """A plan that samples no neighbors: the roots alone."""
    return SamplingPlan(hops=(Draw(direction=settings.direction, fanout=0),))


ARCHITECTURES: Mapping[ModelName, Architecture] = {
    "tgn": Architecture(
        plan=hops("recent", 1),
        settings=frozenset({"dim", "time_dim", "heads", "neighbors", "direction", "id_rows"}),
        has_memory=True,
        in_numpy=True,
    ),
    # Two layers reach two hops, as those of sage and gat do.
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
    # The third hop only counts the degrees of the nodes in the second.
    "gcn": Architecture(
        plan=hops("recent", 3),
        settings=frozenset({"dim", "neighbors", "direction", "id_rows"}),
        static=True,
    ),
    "pair": Architecture(plan=_no_neighbors, settings=frozenset(), in_numpy=True, score="facts"),
}

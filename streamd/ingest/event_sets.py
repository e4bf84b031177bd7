"""The declared sets as our own events name them: which set an event is of, and its features.

Features come as an array of numbers, as they lie in the log, or by their declared names. Both ways
of reading them agree: a column of events, which says only whether all are valid, and one event.
"""

import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from streamd.errors import BadEvent
from streamd.events import Schema
from streamd.ingest.encoding import Feature, Float64
from streamd.ingest.notices import named
from streamd.settings import Settings, edge_sets, node_sets
from streamd.settings_sets import SetSettings
from streamd.settings_sources import NO_NAME

MAX_NAMED = 20
"""Most names of sets and features in an error."""
Named = tuple[Feature, ...]


@dataclass(frozen=True)
class NamedFeatures:
    """The features of each set that are declared by name, by the set's number; a set without is
    empty, and so is all of it where none is declared."""

    of_edges: tuple[Named, ...] = ()
    of_nodes: tuple[Named, ...] = ()


def named_features(settings: Settings) -> NamedFeatures:
    """The declared features of all sets."""
    return NamedFeatures(
        tuple(features_of(one) for one in edge_sets(settings).values()),
        tuple(features_of(one) for one in node_sets(settings).values()),
    )


def features_of(declared: SetSettings) -> Named:
    """The features of a set, in the order in which they lie in the log."""
    return tuple(Feature(name, one) for name, one in declared.features.items())


class SetFeatures:
    """Reads the features of events of one set. Owner: the decoder.

    type: the msgspec type of features by name; None where none is declared, or one has a name that
    msgspec cannot read.
    """

    def __init__(self, owner: str, width: int, features: Named) -> None:
        """owner: the set in words, for errors."""
        self.width = width
        self.names = [f.name for f in features]
        self._owner = owner
        self._features = features
        self.type: Any = None
        attributes = [f"f{i}" for i in range(len(features))]
        if features and not any(map(NO_NAME.search, self.names)):
            self.type = msgspec.defstruct(
                "Features",
                [(a, Any, None) for a in attributes],
                rename=dict(zip(attributes, self.names, strict=True)),
                forbid_unknown_fields=True,
                gc=False,
                eq=False,
            )
        self._getters = [operator.attrgetter(a) for a in attributes]

    def examples(self, most: int) -> list[tuple[str, str]]:
        """Names of the first features, and of each a value as JSON."""
        return [(f.name, f.example) for f in self._features[:most]]

    def columns(self, given: Sequence[Any]) -> Float64 | None:
        """The features of n events as numbers, float64[n, width]; None where one's do not fit.

        given: of each event a list, an object of `type`, or None.
        """
        kinds = set(map(type, given))
        if len(kinds) == 1:
            return self._of_kind(kinds.pop(), given)
        out = np.empty((len(given), self.width))
        for kind in kinds:
            at = [i for i, one in enumerate(given) if type(one) is kind]
            part = self._of_kind(kind, [given[i] for i in at])
            if part is None:
                return None
            out[at] = part
        return out

    def _of_kind(self, kind: type, given: Sequence[Any]) -> Float64 | None:
        """As `columns`, for features that are all given in the same way."""
        count = len(given)
        if kind is list:
            if set(map(len, given)) != {self.width}:
                return None
            flat = np.fromiter(itertools.chain.from_iterable(given), np.float64, count * self.width)
            return flat.reshape(count, self.width)
        if kind is type(None) and not self._features:
            return None if self.width else np.zeros((count, 0))

        # One feature beside the other; without features `missing` stands for all.
        out = np.empty((count, self.width))
        at = 0
        for feature, get in zip(self._features, self._getters, strict=True):
            values = given if kind is type(None) else list(map(get, given))
            part = feature.column(values)
            if part is None:
                return None
            out[:, at : at + feature.width] = part
            at += feature.width
        return out

    def one(self, given: list[float] | Mapping[str, Any] | None, name: str) -> Sequence[float]:
        """The features of one event. name: of their field. Raises: BadEvent."""
        if isinstance(given, list) or (given is None and not self._features):
            return self.checked_width(given or [], name)
        given = given or {}
        if not self._features:
            raise BadEvent(
                "wrong_type", f"{name}: expected array, got object; {self._owner} names no features"
            )
        unknown = [n for n in given if n not in self.names]
        if unknown:
            raise BadEvent(
                "bad_features",
                f"{self._owner} has no feature {named(unknown)}; it has {named(self.names)}",
            )
        return [n for f in self._features for n in f.one(given.get(f.name), "")]

    def checked_width(self, values: list[float], name: str) -> list[float]:
        """Numbers, which must be as many as the log has. Raises: BadEvent."""
        if len(values) != self.width:
            raise BadEvent(
                "feature_width", f"{name} has {len(values)} values, {self._owner} has {self.width}"
            )
        return values


class EventSets:
    """The sets of a log, as events name them. Owner: the decoder."""

    def __init__(self, schema: Schema, features: NamedFeatures | None = None) -> None:
        features = features or NamedFeatures()
        self.schema = schema
        self.edge_names = schema.edge_set_names
        self.node_names = schema.node_set_names
        self.ends = [schema.ends_of(i) for i in range(schema.num_edge_sets)]
        self.of_edges = [
            SetFeatures(_owner("edge", self.edge_names, i), _width(schema.edge_columns(i)), part)
            for i, part in enumerate(features.of_edges or ((),) * schema.num_edge_sets)
        ]
        self.of_nodes = [
            SetFeatures(_owner("node", self.node_names, i), _width(schema.node_columns(i)), part)
            for i, part in enumerate(features.of_nodes or ((),) * schema.num_node_sets)
        ]

    def edge_set(self, name: str | None) -> int:
        """Number of the edge set that an event names. Raises: BadEvent."""
        return _number(name, self.edge_names, "edge_set")

    def node_set(self, name: str | None) -> int:
        """Number of the node set that an event names. Raises: BadEvent."""
        return _number(name, self.node_names, "node_set")


def _number(name: str | None, names: tuple[str, ...], field: str) -> int:
    if name is None:
        if len(names) > 1:
            raise BadEvent("missing_field", f"{field} is missing: {_listed(names)}")
        return 0
    if name not in names:
        raise BadEvent("unknown_set", f"{field} is none of those declared: {_listed(names)}")
    return names.index(name)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "")


def _owner(kind: str, names: tuple[str, ...], number: int) -> str:
    return f"{kind} set {names[number]}" if len(names) > 1 else "the stream"


def _width(columns: slice) -> int:
    width: int = columns.stop - columns.start
    return width

"""Reads the set and the features of streamd's own events, as declared in the settings.

Features are an array of numbers, in the order of the log, or an object by their declared names. Two
ways of reading them agree: a column of events, which only finds whether all are valid, and one
event, which explains its error.
"""

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from streamd.decode.encoding import Feature, Float64
from streamd.decode.node_ids import KeyTable
from streamd.decode.notices import named
from streamd.errors import BadEvent
from streamd.events import Float32, Int64, Schema
from streamd.number_texts import count_noun
from streamd.settings.loading import Settings, edge_sets, node_sets
from streamd.settings.sets import SetSettings
from streamd.settings.sources import NO_NAME

MAX_NAMED = 20
"""Maximum names of sets and features in an error."""
Named = tuple[Feature, ...]
Floats = Float32 | None


@dataclass(frozen=True)
class NamedFeatures:
    """The features of each set that are declared by name, by the set's number. A set without
    declared features has an empty tuple; both tuples are empty if no set has any."""

    of_edges: tuple[Named, ...] = ()
    of_nodes: tuple[Named, ...] = ()


def named_features(settings: Settings) -> NamedFeatures:
    """The declared features of all sets."""
    return NamedFeatures(
        tuple(features_of(one) for one in edge_sets(settings).values()),
        tuple(features_of(one) for one in node_sets(settings).values()),
    )


def features_of(declared: SetSettings) -> Named:
    """The features of a set, in the order of their columns in the log."""
    return tuple(Feature(name, one) for name, one in declared.features.items())


class SetFeatures:
    """Reads the features of events of one set. Owner: the decoder.

    column_names: the feature of each column, for errors. type: the msgspec type of named features;
    None if none is declared, or if msgspec cannot read one of the names.
    """

    def __init__(self, owner: str, width: int, features: Named) -> None:
        """owner: the set in words, for errors."""
        self.width = width
        self.names = [f.name for f in features]
        self.column_names = [f.name for f in features for _ in range(f.width)] or [
            f"features[{i}]" for i in range(width)
        ]
        self._known = frozenset(self.names)
        self._owner = owner
        self._features = features
        self.type: Any = None
        attributes = [f"f{i}" for i in range(len(features))]
        if features and not any(map(NO_NAME.search, self.names)):
            self.type = msgspec.defstruct(
                "Features",
                [(a, *f.json_type) for a, f in zip(attributes, features, strict=True)],
                kw_only=True,
                rename=dict(zip(attributes, self.names, strict=True)),
                forbid_unknown_fields=True,
                gc=False,
                eq=False,
            )
        self._getters = [operator.attrgetter(a) for a in attributes]
        # If all features are numbers without a default, one getter reads them all.
        self._all = None
        if features and all(f.json_type == (float,) for f in features):
            self._all = operator.attrgetter(*attributes)

    def examples(self, most: int) -> list[tuple[str, str]]:
        """The names of the first features, each with an example of a value as JSON."""
        return [(f.name, f.example) for f in self._features[:most]]

    def columns(self, given: Sequence[Any]) -> Float64 | None:
        """Read the features of n events, float64[n, width]; None if those of one event do not fit.

        given: for each event a list, an object of `type`, or None.
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
        """Read features as `columns` does, if all events give them in the same way."""
        count = len(given)
        if kind is list:
            if set(map(len, given)) != {self.width}:
                return None
            flat = itertools.chain.from_iterable(given)
            return np.fromiter(flat, np.float64, count * self.width).reshape(count, self.width)
        if kind is self.type and self._all is not None:
            numbers = map(self._all, given)
            each: Iterable[Any] = numbers
            if self.width > 1:
                each = itertools.chain.from_iterable(numbers)
            return np.fromiter(each, np.float64, count * self.width).reshape(count, self.width)
        if kind is type(None) and not self._features:
            return None if self.width else np.zeros((count, 0))

        # Write one feature after the other; an event without features has the default of each.
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
        """Read the features of one event. name: of their field. Raises: BadEvent."""
        if isinstance(given, list) or (given is None and not self._features):
            return self.checked_width(given or [], name)
        given = given or {}
        if not self._features:
            raise BadEvent(
                "wrong_type",
                f"{name}: expected array, got object; {self._owner} declares no features",
            )
        unknown = [n for n in given if n not in self._known]
        if unknown:
            raise BadEvent(
                "bad_features",
                f"{self._owner} has no feature {named(unknown)}; it has {named(self.names)}",
            )
        return [n for f in self._features for n in f.one(given.get(f.name), "")]

    def checked_width(self, values: list[float], name: str) -> list[float]:
        """Check the number of values against the width of the set. Raises: BadEvent."""
        if len(values) != self.width:
            text = f"{name} has {count_noun(len(values), 'value')}, {self._owner} has {self.width}"
            raise BadEvent("feature_width", text)
        return values


class EventSets:
    """The sets of a log and their names in events. Owner: the decoder."""

    def __init__(self, schema: Schema, features: NamedFeatures | None = None) -> None:
        features = features or NamedFeatures()
        self.schema = schema
        self.edge_names = schema.edge_set_names
        self.node_names = schema.node_set_names
        self.ends = [schema.ends_of(i) for i in range(schema.num_edge_sets)]
        self._sets_of_end = tuple(zip(*self.ends, strict=True))
        self.of_edges = [
            SetFeatures(_owner("edge", self.edge_names, i), _width(schema.edge_columns(i)), part)
            for i, part in enumerate(features.of_edges or ((),) * schema.num_edge_sets)
        ]
        self.of_nodes = [
            SetFeatures(_owner("node", self.node_names, i), _width(schema.node_columns(i)), part)
            for i, part in enumerate(features.of_nodes or ((),) * schema.num_node_sets)
        ]

    @property
    def is_only(self) -> bool:
        """Whether there is one edge set, so that edges need not name it."""
        return len(self.ends) == 1

    def rows(
        self, number_E: Int64 | None, count: int, of_set: Callable[[int, Int64 | None], Floats]
    ) -> Floats:
        """Make feature rows of edges of several sets, float32[n, D]; None if some do not fit.

        Args: number_E: of the edge sets, int64[n], None if there is one; count: n; of_set: returns
        the features of the edges `at` of a set, float32[k, its width], of all if `at` is None.
        """
        if number_E is None:
            return of_set(0, None)
        # Each set's features have their own columns, after the one-hot columns of the sets.
        rows = np.zeros((count, self.schema.edge_feature_dim), np.float32)
        rows[np.arange(count), number_E] = 1.0
        for number in np.flatnonzero(np.bincount(number_E)).tolist():
            at = np.flatnonzero(number_E == number)
            part = of_set(number, at)
            if part is None:
                return None
            rows[at, self.schema.edge_columns(number)] = part
        return rows

    def key_numbers(
        self, table: KeyTable, keys: Sequence[Any], number_E: Int64 | None, end: int
    ) -> Int64 | None:
        """Look up the keys at one end of edges in a table, int64[n]; None if a key is not valid.

        Args: number_E: of the edge sets, int64[n], None if there is one; end: 0 for sources, 1 for
        targets.
        """
        node_sets = self._sets_of_end[end]
        if number_E is None or len(set(node_sets)) == 1:
            return table.numbers(keys, node_sets[0])
        node_set_E = np.array(node_sets)[number_E]
        out = np.empty(len(keys), np.int64)
        for node_set in np.flatnonzero(np.bincount(node_set_E)).tolist():
            at = np.flatnonzero(node_set_E == node_set)
            part = table.numbers([keys[i] for i in at.tolist()], node_set)
            if part is None:
                return None
            out[at] = part
        return out

    def edge_set(self, name: str | None) -> int:
        """The number of the edge set that an event names. Raises: BadEvent."""
        return _number(name, self.edge_names, "edge_set")

    def node_set(self, name: str | None) -> int:
        """The number of the node set that an event names. Raises: BadEvent."""
        return _number(name, self.node_names, "node_set")


def _number(name: str | None, names: tuple[str, ...], field: str) -> int:
    if name is None:
        if len(names) > 1:
            raise BadEvent("missing_field", f"{field} is missing: {_join_names(names)}")
        return 0
    if name not in names:
        raise BadEvent("unknown_set", f"{field} is none of those declared: {_join_names(names)}")
    return names.index(name)


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "")


def _owner(kind: str, names: tuple[str, ...], number: int) -> str:
    return f"{kind} set {names[number]}" if len(names) > 1 else "the stream"


def _width(columns: slice) -> int:
    width: int = columns.stop - columns.start
    return width

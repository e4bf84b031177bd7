"""Compiles a source's declaration to rules, by which the fields of a record become an event, or
none.

`streamd.decode.sources.topic` applies them to Kafka records.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.decode.encoding import Feature, as_key, key_hint
from streamd.decode.node_ids import INT64_MAX
from streamd.decode.plain_values import as_id, plain_scalar
from streamd.decode.sources.paths import Columns, Steps, first_value, kind_of
from streamd.decode.wire import EventType
from streamd.errors import BadEvent
from streamd.settings.sources import (
    ENVELOPE,
    DeleteFields,
    DeleteRule,
    EdgeFields,
    FieldSettings,
    KeyType,
    LabelRule,
    NodeRule,
    Scalar,
    SourceSettings,
    Where,
    is_outside,
    steps_of,
)

PathResolver = Callable[[str], Steps]
"""Converts a path of the settings to its steps in a record."""


class Leaves:
    """Numbers the paths that the rules of a form read, each once.

    of: numbers by list and steps. For a path into the elements of a list, these are the list's
    steps and those inside an element; for any other, the list is ().
    """

    def __init__(self) -> None:
        self.of: dict[tuple[Steps, Steps], int] = {}

    def number(self, steps: Steps, inside: Steps = ()) -> int:
        return self.of.setdefault((inside, steps), len(self.of))


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A field of an event.

    leaf: number of its path, -1 for a constant. path: as in the settings, for errors. type: of
    keys; None keeps the type of each value. others: numbers of further paths, of which the first
    with a value counts if the path has none.
    """

    name: str
    path: str
    leaf: int
    constant: Any
    prefix: str
    default: Any
    type: KeyType | None = None
    others: tuple[int, ...] = ()

    def of(self, row: Sequence[Any]) -> Any:
        """The value in a record; None if there is none."""
        value = self.constant if self.leaf < 0 else plain_scalar(row[self.leaf])
        if self.others:
            value = first_value([value, *(plain_scalar(row[leaf]) for leaf in self.others)])
        return self.default if value is None else value

    def column(self, columns: Columns, count: int) -> Sequence[Any]:
        """The values in `count` records."""
        if self.leaf < 0:
            return [self.constant] * count
        values = columns[self.leaf]
        if self.others:
            several = zip(values, *(columns[leaf] for leaf in self.others), strict=True)
            values = list(map(first_value, several))
        if self.default is not None and not {float, type(None)}.isdisjoint(map(type, values)):
            return [self.default if v is None or v != v else v for v in values]
        return values

    def key(self, row: Sequence[Any]) -> str | int:
        """The value as a node's key. Raises: BadEvent."""
        value = as_key(self.of(row), self.type)
        if value is None:
            raise BadEvent("missing_field", f"{self.words} is missing")
        if type(value) is not str and type(value) is not int:
            raise BadEvent(
                "bad_key",
                f"{self.words} is {kind_of(value)}: keys are text or integers{key_hint(value)}",
            )
        if self.type == "integer" and type(value) is str:
            raise BadEvent("bad_key", f"{self.words} is text, and its type is integer")
        if value == "":
            raise BadEvent("bad_key", f"{self.words} is empty")
        if type(value) is int and abs(value) > INT64_MAX:
            raise BadEvent("bad_key", f"{self.words} does not fit int64: set its type to text")
        return f"{self.prefix}{value}" if self.prefix else value

    @property
    def leaves(self) -> tuple[int, ...]:
        """The numbers of all its paths."""
        return () if self.leaf < 0 else (self.leaf, *self.others)

    @property
    def words(self) -> str:
        """Field and path, for errors."""
        return self.name if self.path == self.name else f"{self.name} ({self.path})"


@dataclass(frozen=True, slots=True)
class Condition:
    """Requires that the value at a path is one of some."""

    leaf: int
    values: frozenset[Any]

    def holds(self, row: Sequence[Any]) -> bool:
        return _comparable(row[self.leaf]) in self.values

    def column(self, columns: Columns) -> NDArray[np.bool_]:
        """Whether the condition holds, bool[n]."""
        column = columns[self.leaf]
        if set(map(type, column)) != {str}:
            column = list(map(_comparable, column))
        return np.fromiter(map(self.values.__contains__, column), np.bool_, len(column))


def meets(where: Where, read: Callable[[str], Sequence[Any]]) -> bool:
    """Whether a record's data meets the conditions by path; ignores conditions on its key or
    headers.

    read: returns the values of the record at a path, several for the elements of a list.
    """
    return all(
        not {*map(_comparable, read(path))}.isdisjoint(map(_comparable, values))
        for path, values in where.items()
        if not is_outside(steps_of(path))
    )


def _comparable(value: Any) -> Any:
    """Convert a value so that it equals only values of the same type in a condition."""
    if type(value) is str or type(value) is int:
        return value
    if type(value) is bool:
        # True equals 1 in Python.
        return ("bool", value)
    # Objects and lists equal no value of a condition, and have no hash.
    value = as_id(plain_scalar(value))
    return value if value is None or type(value) in (str, int, float) else ("other",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """The conditions on which a record becomes an event of a type, and the event's fields.

    set_name: of the edge or node set of the events, None if there is one. refuses: the reason if a
    record that meets the conditions cannot become an event. skips: whether such a record is no
    event.
    """

    type: EventType
    conditions: tuple[Condition, ...]
    keys: Mapping[str, Source] = field(default_factory=dict)
    time: Source | None = None
    features: tuple[tuple[Feature, Source | None], ...] = ()
    target: tuple[Source, ...] = ()
    set_name: str | None = None
    refuses: str = ""
    skips: bool = False

    def holds(self, row: Sequence[Any]) -> bool:
        return all(c.holds(row) for c in self.conditions)

    @property
    def leaves(self) -> frozenset[int]:
        """The numbers of all paths that the rule reads."""
        of_features = [source for _, source in self.features]
        sources = (*self.keys.values(), self.time, *of_features, *self.target)
        read = {leaf for source in sources if source is not None for leaf in source.leaves}
        return frozenset(read | {condition.leaf for condition in self.conditions})


class RuleMaker:
    """Compiles a source's rules for one form of records.

    resolve: converts their paths. each: path of the list that has an event in each element.
    """

    def __init__(self, leaves: Leaves, resolve: PathResolver, each: str | None = None) -> None:
        self._leaves = leaves
        self._resolve = resolve
        self.list: Steps = () if each is None else resolve(each)
        """Steps of the list; () without `each`."""
        if self.list:
            leaves.number(self.list)

    def condition(self, path: str, values: Sequence[Scalar]) -> Condition:
        return Condition(self._leaf(path), frozenset(map(_comparable, values)))

    def _leaf(self, path: str) -> int:
        """The number of a path. A path that begins with the list leads into its elements."""
        steps = self._resolve(path)
        num = len(self.list)
        if num and steps[:num] == self.list:
            return self._leaves.number(steps[num:], self.list)
        return self._leaves.number(steps)

    def conditions(self, where: Where) -> tuple[Condition, ...]:
        return tuple(self.condition(path, values) for path, values in where.items())

    def edges(
        self,
        where: Where,
        fields: EdgeFields,
        features: Sequence[Feature],
        edge_set: str | None,
    ) -> Rule:
        return Rule(
            type="edge",
            conditions=self.conditions(where),
            keys=self._keys(src=fields.src, dst=fields.dst),
            time=self._time(fields.time),
            features=self._features(features, fields.features),
            set_name=edge_set,
        )

    def labels(self, rule: LabelRule) -> Rule:
        return Rule(
            type="label",
            conditions=self.conditions(rule.where),
            keys=self._keys(node=rule.fields.node),
            time=self._time(rule.fields.time),
            target=tuple(self.source("target", target) for target in rule.fields.target),
            set_name=rule.node_set,
        )

    def nodes(self, rule: NodeRule, features: Sequence[Feature]) -> Rule:
        return Rule(
            type="node",
            conditions=self.conditions(rule.where),
            keys=self._keys(id=rule.fields.id),
            features=self._features(features, rule.fields.features),
            set_name=rule.node_set,
        )

    def deletes(self, where: Where, fields: DeleteFields, set_name: str | None) -> Rule:
        """Compile a rule of deletes. set_name: of the node set if they delete nodes, else of the
        edge set."""
        return Rule(
            type="delete",
            conditions=self.conditions(where),
            keys=self._keys(node=fields.node, src=fields.src, dst=fields.dst),
            time=self._time(fields.time),
            set_name=set_name,
        )

    def source(self, name: str, given: FieldSettings) -> Source:
        leaves = [self._leaf(path) for path in given.path] or [-1]
        return Source(
            name=name,
            path=" or ".join(given.path) or "constant",
            leaf=leaves[0],
            others=tuple(leaves[1:]),
            constant=None if given.constant is None else given.constant,
            prefix=given.prefix,
            default=given.default,
            type=given.type,
        )

    def _keys(self, **given: FieldSettings | None) -> dict[str, Source]:
        return {name: self.source(name, f) for name, f in given.items() if f is not None}

    def _time(self, given: FieldSettings | None) -> Source | None:
        return None if given is None else self.source("time", given)

    def _features(
        self, features: Sequence[Feature], given: Mapping[str, FieldSettings]
    ) -> tuple[tuple[Feature, Source | None], ...]:
        return tuple(
            (f, self.source(f.name, given[f.name]) if f.name in given else None) for f in features
        )


def absolute(base: Steps, envelope: Steps) -> PathResolver:
    """A resolver of paths if the data is at `base` of a record and the envelope at `envelope`."""

    def resolve(path: str) -> Steps:
        steps = steps_of(path)
        if steps[0] == ENVELOPE:
            return (*envelope, *steps[1:])
        # Paths into the record's key and headers are not in its value.
        return steps if is_outside(steps) else (*base, *steps)

    return resolve


def plain_rules(source: SourceSettings, maker: RuleMaker, sets: "FeatureSets") -> list[Rule]:
    """The rules of a source, in the order in which they are tried."""
    rules = []
    if source.deletes is not None:
        of_set = deleted_set(source, source.deletes)
        rules.append(maker.deletes(source.deletes.where, source.deletes.fields, of_set))
    if source.labels is not None:
        rules.append(maker.labels(source.labels))
    if source.nodes is not None:
        rules.append(maker.nodes(source.nodes, sets.nodes))
    if source.fields is not None:
        rules.append(maker.edges(source.where, source.fields, sets.edges, source.edge_set))
    return rules


def deleted_set(source: SourceSettings, rule: DeleteRule) -> str | None:
    """The set of the nodes or edges that a source deletes; None if there is one."""
    return (rule.edge_set or source.edge_set) if rule.fields.node is None else rule.node_set


@dataclass(frozen=True, slots=True)
class FeatureSets:
    """The declared features of edges and nodes."""

    edges: tuple[Feature, ...]
    nodes: tuple[Feature, ...]

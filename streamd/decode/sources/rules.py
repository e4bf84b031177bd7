"""A source's declaration compiled: the fields of a record become an event, or nothing.

`streamd.decode.sources.topic` applies it to Kafka records.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.decode.block import Edges
from streamd.decode.encoded_decimals import decimal_hint
from streamd.decode.encoding import Feature, Times, as_key, key_hint
from streamd.decode.node_ids import INT64_MAX, KeyTable
from streamd.decode.rounding import EXACT, NOTHING, count_rounded
from streamd.decode.sources.paths import Columns, Steps, follow, kind_of
from streamd.decode.wire import EventType, WireEvent
from streamd.errors import BadEvent
from streamd.events import Bools, Int64, Schema
from streamd.settings.sources import (
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
    steps_of,
)

MAX_KEPT_KEYS = 200_000
"""Most keys whose numbers a field remembers beside the key table, about 30 MB."""
Place = Callable[[str], Steps]
"""Where in a record a path of the settings lies."""


class Leaves:
    """Numbers the paths that a layout's rules read, each once."""

    def __init__(self) -> None:
        self.of: dict[Steps, int] = {}

    def number(self, steps: Steps) -> int:
        return self.of.setdefault(steps, len(self.of))


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A field of an event. leaf: number of its path, -1 for a constant. path: in the settings'
    words, for errors. type: of keys; None keeps the type of each value."""

    name: str
    path: str
    leaf: int
    constant: Any
    prefix: str
    default: Any
    type: KeyType | None = None

    def of(self, row: Sequence[Any]) -> Any:
        """The value in a record; None where there is none."""
        value = self.constant if self.leaf < 0 else row[self.leaf]
        return self.default if value is None else value

    def column(self, columns: Columns, count: int) -> Sequence[Any]:
        """The values in `count` records."""
        if self.leaf < 0:
            return [self.constant] * count
        values = columns[self.leaf]
        if self.default is not None and None in values:
            return [self.default if v is None else v for v in values]
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
    def words(self) -> str:
        """Field and path, for errors."""
        return self.name if self.path == self.name else f"{self.name} ({self.path})"


class KeyColumn:
    """Numbers of the keys in one field. Owner: a mapping. It remembers those with a prefix."""

    def __init__(self, source: Source, keys: KeyTable, node_set: int) -> None:
        self._source = source
        self._keys = keys
        self._node_set = node_set
        self._epoch = keys.epoch
        self._known: dict[str | int, int] = {}

    def numbers(self, columns: Columns, count: int) -> Int64 | None:
        """int64[count] numbers in the key table; None where one key is not valid."""
        values = self._source.column(columns, count)
        kind = self._source.type
        if kind is not None or float in set(map(type, values)):
            values = [as_key(value, kind) for value in values]
            if kind == "integer" and str in set(map(type, values)):
                return None
        # True and 1.0 equal 1, so the types are looked at first.
        if not set(map(type, values)) <= {str, int}:
            return None
        prefix = self._source.prefix
        if not prefix:
            return self._keys.numbers(values, self._node_set)
        if self._epoch != self._keys.epoch or len(self._known) > MAX_KEPT_KEYS:
            self._known.clear()
            self._epoch = self._keys.epoch

        # The usual case in one pass: all keys are known.
        get = self._known.get
        try:
            return np.fromiter(map(get, values), np.int64, count)
        except TypeError:
            pass
        try:
            for value in values:
                if value not in self._known:
                    if value == "" or (type(value) is int and abs(value) > INT64_MAX):
                        return None
                    self._known[value] = self._keys.number(f"{prefix}{value}", "", self._node_set)
        except BadEvent:
            return None
        return np.fromiter(map(get, values), np.int64, count)


@dataclass(frozen=True, slots=True)
class Condition:
    """That the value at a path is one of some."""

    leaf: int
    values: frozenset[Any]

    def holds(self, row: Sequence[Any]) -> bool:
        return _comparable(row[self.leaf]) in self.values

    def column(self, columns: Columns) -> NDArray[np.bool_]:
        """Whether it holds, bool[n]."""
        column = columns[self.leaf]
        if set(map(type, column)) != {str}:
            column = list(map(_comparable, column))
        return np.fromiter(map(self.values.__contains__, column), np.bool_, len(column))


def meets(where: Where, row: Any) -> bool:
    """Whether a record's data meets the conditions by path; ignores conditions on its key or
    headers."""
    return all(
        _comparable(follow(steps_of(path))(row)) in map(_comparable, values)
        for path, values in where.items()
        if path[0] != "$"
    )


def _comparable(value: Any) -> Any:
    """A value that is equal to one of a condition's only where it is of the same type."""
    if type(value) is bool:
        return ("bool", value)
    # Objects and lists equal nothing, and cannot be looked up.
    return value if value is None or type(value) in (str, int, float) else ("other",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Which records become events of a type, and where their fields are.

    set_name: of the edge or node set of the events, None where there is one. refuses: the reason,
    where a record that meets the conditions cannot become an event. skips: whether such a record is
    none.
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


class Layout:
    """The rules of a source for records of one form. Owner: the source's decoder.

    leaves: numbers of all paths that the rules read, in order.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        leaves: Leaves,
        keys: KeyTable,
        times: Times | None,
        schema: Schema,
        max_feature: float,
        num_of_deleted: int = 0,
    ) -> None:
        """times: reads times, None for those of the records. num_of_deleted: how many rules at the
        beginning are for records that say of themselves that their row was deleted."""
        self.of_deleted = tuple(rules[:num_of_deleted])
        self.rules = tuple(rules[num_of_deleted:])
        self.paths = tuple(leaves.of)
        self._times = times
        self._schema = schema
        self._max_feature = max_feature
        last = self.rules[-1] if self.rules else None
        self._edges = last if last is not None and last.type == "edge" else None
        self._edge_set = 0
        if self._edges is not None and self._edges.set_name is not None:
            self._edge_set = schema.edge_set_names.index(self._edges.set_name)
        self._width = (
            sum(feature.width for feature, _ in self._edges.features) if self._edges else 0
        )
        edge_keys = self._edges.keys.values() if self._edges is not None else ()
        of_ends = zip(edge_keys, schema.ends_of(self._edge_set), strict=False)
        self._ends = [KeyColumn(source, keys, node_set) for source, node_set in of_ends]

    def split(self, columns: Columns, count: int) -> tuple[Bools, Bools]:
        """Which of `count` records are edges, and which are other events: bool[count] each.

        Those that are neither are to be skipped.
        """
        others = np.zeros(count, np.bool_)
        edges = np.zeros(count, np.bool_)
        for rule in self.rules:
            met = np.ones(count, np.bool_)
            for condition in rule.conditions:
                met &= condition.column(columns)
            # Edges have the last rule, so no other one is tried behind it.
            if rule is self._edges:
                edges = met & ~others
            else:
                others |= met
        return edges, others

    def edges(self, columns: Columns, stamp: Any, count: int) -> Edges | None:
        """The columns of `count` records that are all edges; None where one is not valid.

        stamp: timestamps of the records, microseconds, as in `Origin`.
        """
        rule = self._edges
        assert rule is not None
        if self._times is None:
            stamp_E = np.broadcast_to(stamp, count)
            time = stamp_E if (stamp_E >= 0).all() else None
        else:
            assert rule.time is not None
            time = self._times.column(rule.time.column(columns, count))
        of_src, of_dst = self._ends
        src = None if time is None else of_src.numbers(columns, count)
        dst = None if src is None else of_dst.numbers(columns, count)
        if time is None or src is None or dst is None:
            return None

        # Features side by side; compared as float64, where float32 would be infinite.
        values = np.empty((count, self._width), np.float32)
        rounded = NOTHING
        at = 0
        for feature, source in rule.features:
            missing = [None] * count
            part = feature.column(missing if source is None else source.column(columns, count))
            largest = np.nan if part is None else np.abs(part).max(initial=0)
            if part is None or not largest <= self._max_feature:
                return None
            if largest > EXACT:
                rounded += count_rounded(part, [feature.name] * feature.width)
            values[:, at : at + feature.width] = part
            at += feature.width
        return Edges(time, src, dst, self._schema.edge_rows(self._edge_set, values), rounded)

    def event(self, row: Sequence[Any], stamp_us: int, deleted: bool = False) -> WireEvent | None:
        """The event of one record, with its time in microseconds; None where no rule holds.

        Args: row: the values at the paths; stamp_us: the record's timestamp; deleted: whether it
        says that its row was deleted.
        Raises: BadEvent.
        """
        rules = self.of_deleted if deleted else self.rules
        rule = next((r for r in rules if r.holds(row)), None)
        return None if rule is None or rule.skips else self._event(rule, row, stamp_us)

    def _event(self, rule: Rule, row: Sequence[Any], stamp_us: int) -> WireEvent:
        """The event that a rule makes of a record. Raises: BadEvent."""
        if rule.refuses:
            raise BadEvent("unsupported", rule.refuses)
        event = WireEvent(type=rule.type)
        if rule.type == "edge" or "src" in rule.keys:
            event.edge_set = rule.set_name
        else:
            event.node_set = rule.set_name
        for name, source in rule.keys.items():
            setattr(event, name, source.key(row))
        if rule.type != "node" and "node" not in rule.keys or rule.type == "label":
            event.time = self._time(rule, row, stamp_us)
        if rule.features:
            event.features = [
                number
                for feature, source in rule.features
                for number in feature.one(
                    None if source is None else source.of(row),
                    "" if source is None else source.path,
                )
            ]
        if rule.target:
            event.target = [n for source in rule.target for n in _targets(source, row)]
        return event

    def _time(self, rule: Rule, row: Sequence[Any], stamp_us: int) -> int:
        if rule.time is not None and self._times is not None:
            return self._times.one(rule.time.of(row), rule.time.words)
        if stamp_us < 0:
            raise BadEvent("bad_time", "the record has no timestamp in ms")
        return stamp_us


def _targets(source: Source, row: Sequence[Any]) -> list[float]:
    """The numbers of one target: a number, truth value or list of numbers. Raises: BadEvent."""
    value = source.of(row)
    numbers = value if isinstance(value, list) else [value]
    if all(type(n) in (int, float, bool) for n in numbers):
        try:
            return [float(n) for n in numbers]
        except OverflowError:
            raise BadEvent("bad_features", f"{source.words} is out of range") from None
    reason = "missing_field" if value is None else "wrong_type"
    what = f"{kind_of(value)}, not a number{decimal_hint(value)}"
    what = "missing" if value is None else what
    raise BadEvent(reason, f"{source.words} is {what}")


class RuleMaker:
    """Compiles a source's rules for one form of records. place: where their paths lie in it."""

    def __init__(self, leaves: Leaves, place: Place) -> None:
        self._leaves = leaves
        self._place = place

    def condition(self, path: str, values: Sequence[Scalar]) -> Condition:
        leaf = self._leaves.number(self._place(path))
        return Condition(leaf, frozenset(map(_comparable, values)))

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
        """set_name: of the node set where they delete nodes, else of the edge set."""
        return Rule(
            type="delete",
            conditions=self.conditions(where),
            keys=self._keys(node=fields.node, src=fields.src, dst=fields.dst),
            time=self._time(fields.time),
            set_name=set_name,
        )

    def source(self, name: str, given: FieldSettings) -> Source:
        leaf = -1 if given.path is None else self._leaves.number(self._place(given.path))
        return Source(
            name=name,
            path=given.path or "constant",
            leaf=leaf,
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


def absolute(base: Steps, envelope: Steps) -> Place:
    """A place for paths whose data lies at `base` of a record and whose envelope at `envelope`."""

    def place(path: str) -> Steps:
        steps = steps_of(path)
        if steps[0] == "$envelope":
            return (*envelope, *steps[1:])
        # The record's key and headers are not in its value.
        return steps if steps[0].startswith("$") else (*base, *steps)

    return place


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
    """The set of the nodes or edges that a source's deletes name; None where there is one."""
    return (rule.edge_set or source.edge_set) if rule.fields.node is None else rule.node_set


@dataclass(frozen=True, slots=True)
class FeatureSets:
    """The declared features of edges and nodes."""

    edges: tuple[Feature, ...]
    nodes: tuple[Feature, ...]

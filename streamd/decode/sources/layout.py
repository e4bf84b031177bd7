"""Applies the rules of one source to the values of records, by columns or one by one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamd.decode.block import Edges
from streamd.decode.encoded_decimals import decimal_hint
from streamd.decode.encoding import Times, as_key
from streamd.decode.node_ids import INT64_MAX, KeyTable
from streamd.decode.plain_values import plain_scalar
from streamd.decode.rounding import EXACT, NOTHING, count_rounded
from streamd.decode.sources.paths import Columns, Walk, kind_of, open_text
from streamd.decode.sources.rules import Rule, Source
from streamd.decode.wire import WireEvent
from streamd.errors import BadEvent
from streamd.events import Bools, Int64, Schema

MAX_KEPT_KEYS = 200_000
"""Maximum keys with numbers that a field caches next to the key table, about 30 MB."""


class KeyColumn:
    """Looks up the keys of one field. Owner: a mapping. It caches the numbers of keys with a
    prefix."""

    def __init__(self, source: Source, keys: KeyTable, node_set: int) -> None:
        self._source = source
        self._keys = keys
        self._node_set = node_set
        self._epoch = keys.epoch
        self._known: dict[str | int, int] = {}

    def numbers(self, columns: Columns, count: int) -> Int64 | None:
        """Look up or add the keys in the key table, int64[count]; None if one is not valid."""
        values = self._source.column(columns, count)
        kind = self._source.type
        if kind is not None or not set(map(type, values)) <= {str, int}:
            values = [as_key(value, kind) for value in values]
            if kind == "integer" and str in set(map(type, values)):
                return None
        # True and 1.0 equal 1, so check the types first.
        if not set(map(type, values)) <= {str, int}:
            return None
        prefix = self._source.prefix
        if not prefix:
            return self._keys.numbers(values, self._node_set)
        # `KeyTable.shrink` made the cached numbers void, or the cache is full.
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
class Each:
    """A list in a record that has an event in each element. Owner: a layout.

    leaf: column of the lists. path: as in the settings. inner: columns of the elements, each with
    the walk from an element to its value, None for the element itself.
    """

    leaf: int
    path: str
    inner: tuple[tuple[int, Walk | None], ...]

    def elements(self, row: Sequence[Any]) -> list[Any] | None:
        """The elements in a record, [] if the list is absent or null; None if the value is not a
        list."""
        found = open_text(row[self.leaf])
        return [] if found is None else found if type(found) is list else None

    def misfit(self, row: Sequence[Any]) -> str:
        """The error text for a record that has another value than a list there."""
        return f"{self.path} is {kind_of(row[self.leaf])}, but `each` reads a list"

    def with_element(self, row: Sequence[Any], element: Any) -> list[Any]:
        """The values of a record, with those of one element."""
        values = list(row)
        for column, walk in self.inner:
            values[column] = element if walk is None else walk(element)
        return values

    def lengths(self, columns: Columns) -> Int64 | None:
        """The number of elements of each record, int64[n]; None if the value of one is no list."""
        lists = columns[self.leaf]
        # Usually all are lists; text and null are checked one by one.
        if set(map(type, lists)) <= {list}:
            return np.fromiter(map(len, lists), np.int64, len(lists))
        found = list(map(open_text, lists))
        if not {*map(type, found)} <= {list, type(None)}:
            return None
        return np.array([0 if one is None else len(one) for one in found], np.int64)

    def spread(self, columns: Columns, lengths: Int64, used: frozenset[int]) -> Columns:
        """Make the columns of all elements. lengths: elements of each record. used: columns that
        are read."""
        # Repeat columns of the record, and walk those of the elements.
        num_rows, num_elements = len(lengths), int(lengths.sum())
        lists = map(open_text, columns[self.leaf])
        elements = [element for one in lists for element in one or ()]
        row = np.repeat(np.arange(num_rows), lengths).tolist()
        spread: Columns = [[None] * num_elements] * len(columns)
        for column in used:
            spread[column] = [columns[column][i] for i in row]
        for column, walk in self.inner:
            spread[column] = elements if walk is None else list(map(walk, elements))
        return spread


class Layout:
    """The rules of a source for records of one form. Owner: the form.

    each: the list with an event in each element, None without one. also: whether the source takes
    records that an earlier source took.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        each: Each | None,
        also: bool,
        keys: KeyTable,
        times: Times | None,
        schema: Schema,
        max_feature: float,
    ) -> None:
        """times: reads times, None for the timestamps of records."""
        self.rules = tuple(rules)
        self.leaves = frozenset(leaf for rule in rules for leaf in rule.leaves)
        """The columns that the rules read."""
        self.each = each
        self.also = also
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
        """Find which of `count` records are edges, and which are other events: bool[count] each.

        Records that are neither are skipped.
        """
        others = np.zeros(count, np.bool_)
        edges = np.zeros(count, np.bool_)
        for rule in self.rules:
            met = np.ones(count, np.bool_)
            for condition in rule.conditions:
                met &= condition.column(columns)
            # The rule of edges is the last, so no other rule follows.
            if rule is self._edges:
                edges = met & ~others
            else:
                others |= met
        return edges, others

    def edges(self, columns: Columns, stamp: Any, count: int) -> Edges | None:
        """The columns of `count` records that are all edges; None if one is not valid.

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

        # Write one feature after the other; compare as float64, because float32 would be infinite.
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

    def rows(self, row: Sequence[Any], most: int) -> list[Sequence[Any]]:
        """The values of each event that one record may be, at most `most`. Raises: BadEvent."""
        if self.each is None:
            return [row]
        elements = self.each.elements(row)
        if elements is None:
            # The list matters only if the source would take the record.
            if self.rule_of(row) is None:
                return []
            raise BadEvent("wrong_type", self.each.misfit(row))
        if len(elements) > most:
            what = f"{self.each.path} makes more than ingest.max_record_events"
            raise BadEvent("too_many_events", what)
        return [self.each.with_element(row, element) for element in elements]

    def events(
        self, rules: Sequence[Rule | None], rows: Sequence[Sequence[Any]], stamp_us: int
    ) -> list[WireEvent | BadEvent | None]:
        """Make the events of the rows of one record by their rules.

        After the first row that is refused, no events are made; the error replaces its event.
        """
        # One error refuses the record, so stop at the first.
        found: list[WireEvent | BadEvent | None] = [None] * len(rows)
        for at, (rule, row) in enumerate(zip(rules, rows, strict=True)):
            if rule is None or rule.skips:
                continue
            try:
                found[at] = self.event(rule, row, stamp_us)
            except BadEvent as bad:
                of = "" if self.each is None else f", in {self.each.path}.{at}"
                found[at] = BadEvent(bad.reason, f"{bad}{of}")
                break
        return found

    def rule_of(self, row: Sequence[Any]) -> Rule | None:
        """The first rule that a record's values meet; None if they meet none."""
        return next((rule for rule in self.rules if rule.holds(row)), None)

    def event(self, rule: Rule, row: Sequence[Any], stamp_us: int) -> WireEvent:
        """Make the event of a record by a rule, with its time in microseconds.

        Args: row: the values at the paths; stamp_us: the record's timestamp. Raises: BadEvent.
        """
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
            raise BadEvent(
                "bad_time",
                "the record has no timestamp in ms, which `time: record` asks for; rows of a file "
                "have none: map a field of times",
            )
        return stamp_us


def _targets(source: Source, row: Sequence[Any]) -> list[float]:
    """The numbers of one target: a number, boolean or list of numbers. Raises: BadEvent."""
    value = source.of(row)
    numbers = list(map(plain_scalar, value)) if isinstance(value, list) else [value]
    if all(type(n) in (int, float, bool) for n in numbers):
        try:
            return [float(n) for n in numbers]
        except OverflowError:
            raise BadEvent("bad_features", f"{source.words} is out of range") from None
    reason = "missing_field" if value is None else "wrong_type"
    what = f"{kind_of(value)}, not a number{decimal_hint(value)}"
    what = "missing" if value is None else what
    raise BadEvent(reason, f"{source.words} is {what}")

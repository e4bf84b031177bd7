"""The forms of a topic's records: plain, or in a standard envelope.

A form has the paths of the data and of the envelope's fields in a record, so that an envelope needs
no further pass over the record.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from streamd.decode.checks import Rules
from streamd.decode.encoding import Times
from streamd.decode.node_ids import KeyTable
from streamd.decode.sources.cloudevents import ATTRIBUTE
from streamd.decode.sources.layout import Each, Layout
from streamd.decode.sources.paths import Columns, Shape, Steps, follow, parsed, text_above
from streamd.decode.sources.rules import (
    FeatureSets,
    Leaves,
    PathResolver,
    Rule,
    RuleMaker,
    absolute,
    deleted_set,
    plain_rules,
)
from streamd.decode.sources.unsent_values import UnsentValue
from streamd.decode.wire import WireEvent
from streamd.errors import BadEvent
from streamd.events import Int64
from streamd.settings.sources import (
    ENVELOPE,
    HEADERS,
    KEY,
    DeleteFields,
    SourceSettings,
    Where,
    steps_of,
)

CHANGED = frozenset(("c", "r", "u"))
"""Debezium's operations that leave a row: created, read by a snapshot, updated."""
DELETED = "d"
TRUNCATED = "t"
"""Debezium's operation that deletes all rows of a table."""
OF_RECORD = (KEY, HEADERS)
"""First steps of paths into a record's key and headers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One form of a topic's records. Owner: the topic.

    layouts: one for each source of the topic, in order. deleted: the same for records of deleted
    rows. paths: of all columns, including those inside a list's elements. shape: reads the columns
    `in_value`. stand_in: counts as no value. of_record: columns from a record's key and headers
    instead, each with its reader. operation: Debezium: column of the operation. inlined:
    CloudEvents: column of data in base64. mark: name of a field that every value has; a value
    without it and without all paths has another form.
    """

    layouts: tuple[Layout, ...]
    deleted: tuple[Layout, ...] = ()
    paths: tuple[Steps, ...]
    shape: Shape
    stand_in: UnsentValue
    in_value: tuple[int, ...]
    of_record: tuple[tuple[int, Callable[[Any], Any]], ...]
    operation: int = -1
    inlined: int = -1
    mark: str = ""

    @property
    def is_simple(self) -> bool:
        """Whether each object is at most one event."""
        return all(layout.each is None and not layout.also for layout in self.layouts)

    def columns(self, records: Sequence[Any], of_values: Columns) -> Columns | None:
        """All columns of n records; None if one of them has to be decoded alone."""
        columns: Columns = [[None] * len(records)] * len(self.paths)
        for at, column in zip(self.in_value, of_values, strict=True):
            columns[at] = self.stand_in.without(column)
        for at, read in self.of_record:
            columns[at] = list(map(read, records))
        if self.operation >= 0:
            operations = columns[self.operation]
            if set(map(type, operations)) != {str} or not CHANGED.issuperset(operations):
                return None
        # Data in base64 is decoded one by one.
        if self.inlined >= 0 and any(data is not None for data in columns[self.inlined]):
            return None
        # Usually all values have some path, which is cheaper to check than each value by itself.
        may_lack = self.mark and all(None in column for column in of_values)
        if may_lack and (None,) * len(of_values) in zip(*of_values, strict=True):
            return None
        return columns

    @property
    def has_also(self) -> bool:
        """Whether several sources may take one object."""
        return any(layout.also for layout in self.layouts)

    def lengths(self, columns: Columns, count: int) -> Int64 | None:
        """The number of events that each of `count` records may be by each layout, int64[count, L];
        None if a value is no list."""
        # A source without a list makes one event at most.
        lengths = np.ones((count, len(self.layouts)), np.int64)
        for at, layout in enumerate(self.layouts):
            if layout.each is not None:
                of_lists = layout.each.lengths(columns)
                if of_lists is None:
                    return None
                lengths[:, at] = of_lists
        return lengths

    def events(
        self, row: Sequence[Any], stamp_us: int, is_deleted: bool, most: int
    ) -> list[WireEvent | BadEvent | None]:
        """The events of one record, with an error for each that is refused, and None for each that
        is none.

        The first source that takes a record makes its events, and so do later sources with `also`.
        With `also` the result has the events of all sources, one after the other; otherwise it is
        as long as the longest list of a source.
        Args: row: the values at the paths; stamp_us: the record's timestamp; is_deleted: whether
        the record is of a deleted row; most: the maximum number of events.
        Raises: BadEvent if the record as a whole is refused.
        """
        found: list[WireEvent | BadEvent | None] = []
        is_taken = False
        longest = 0
        for layout in self.deleted if is_deleted else self.layouts:
            # Every source counts for the indexes, even if another one takes the record.
            rows = layout.rows(row, most - len(found))
            longest = max(longest, len(rows))
            rules: list[Rule | None] = [None] * len(rows)
            if layout.also or not is_taken:
                rules = list(map(layout.rule_of, rows))
            takes = any(rules)
            is_taken = is_taken or takes
            if takes or self.has_also:
                found += layout.events(rules, rows, stamp_us)
        return found if self.has_also else found + [None] * (longest - len(found))

    def check_mark(self, of_value: Sequence[Any], raw: bytes | msgspec.Raw) -> None:
        """Refuse a value that does not have this form, because it would be skipped. Raises:
        BadEvent."""
        if self.mark and of_value.count(None) == len(of_value) and self.mark not in parsed(raw):
            raise BadEvent("missing_field", f"{self.mark} is missing, which the envelope needs")

    def name_text(self, bad: BadEvent, value: Any) -> BadEvent:
        """Add to the error of a missing field the name of the text that the path cannot enter.

        value: the parsed JSON.
        """
        if bad.reason != "missing_field":
            return bad
        found = (text_above(value, self.paths[at]) for at in self.in_value)
        text = next(filter(None, found), "")
        return BadEvent(bad.reason, f"{bad}; {text} is text, and not JSON") if text else bad

    def row(self, record: Any, of_value: Sequence[Any]) -> list[Any]:
        """All values of one record, by the numbers of the columns."""
        row = [None] * len(self.paths)
        for at, value in zip(self.in_value, of_value, strict=True):
            row[at] = None if self.stand_in.is_one(value) else value
        for at, read in self.of_record:
            row[at] = read(record)
        return row


def forms_of(
    sources: Sequence[SourceSettings], maker: "FormMaker", in_json: bool
) -> dict[str, Form]:
    """Make the forms of a topic's records, by name. in_json: whether its values are JSON."""
    envelope = sources[0].envelope
    if envelope == "debezium":
        bare = {"bare": maker.debezium(())}
        return bare | ({"wrapped": maker.debezium(("payload",))} if in_json else {})
    if envelope == "cloudevents":
        return {"structured": maker.structured(), "binary": maker.binary()}
    # Formats other than JSON have their schema elsewhere, so they do not wrap the data.
    wrapped = envelope == "connect" and in_json
    return {"plain": maker.plain(("payload",) if wrapped else ())}


@dataclass(frozen=True, slots=True)
class SourceRules:
    """A source's rules for records of one form. list: steps of the list with an event in each
    element."""

    source: SourceSettings
    rules: Sequence[Rule]
    list: Steps = ()


class FormMaker:
    """Makes the forms of a topic, which share features and keys.

    sources: of the topic, in order. time_unit: for a source that names none.
    """

    def __init__(
        self, sources: Sequence[SourceSettings], rules: Rules, keys: KeyTable, time_unit: str
    ) -> None:
        self._sources = sources
        self._rules = rules
        self._keys = keys
        self._time_unit = time_unit
        self._stand_in = UnsentValue(sources[0].unavailable_value)

    def plain(self, base: Steps = ()) -> Form:
        """Records with their data at `base` of the value."""
        leaves = Leaves()
        made = self._of_sources(leaves, absolute(base, ()))
        return self._form(made, _with_one_of_value(leaves), mark=base[0] if base else "")

    def debezium(self, base: Steps) -> Form:
        """Change events with their operation in the object at `base`."""
        leaves = Leaves()
        operation = leaves.number((*base, "op"))
        before = absolute((*base, "before"), base)
        deleted = []
        for source in self._sources:
            maker = RuleMaker(leaves, before, source.each)
            # A row of a label or of a delete was neither a node nor an edge, so skip its deletion.
            no_rows = [rule for rule in (source.deletes, source.labels) if rule is not None]
            skipped = [
                Rule(type="delete", conditions=maker.conditions(rule.where), skips=True)
                for rule in no_rows
            ]
            of_nodes = source.nodes.where if source.nodes is not None else {}
            rules = [*skipped, *_row_deletes(source, maker, of_nodes, source.where)]
            deleted.append(SourceRules(source, rules, maker.list))
        made = self._of_sources(leaves, absolute((*base, "after"), base))
        return self._form(made, leaves, deleted, operation=operation)

    def structured(self) -> Form:
        """CloudEvents with data and attributes in the value."""
        leaves = Leaves()
        inlined = leaves.number(("data_base64",))
        made = self._of_sources(leaves, absolute(("data",), ()))
        return self._form(made, leaves, inlined=inlined, mark="specversion")

    def binary(self) -> Form:
        """CloudEvents with the data as value and the attributes in headers."""

        def resolve(path: str) -> Steps:
            steps = steps_of(path)
            if steps[0] == ENVELOPE:
                return (HEADERS, f"{ATTRIBUTE}{steps[1]}")
            return steps

        leaves = Leaves()
        made = self._of_sources(leaves, resolve)
        return self._form(made, _with_one_of_value(leaves))

    def tombstone(self) -> Form | None:
        """Null values, with the fields of the record's key; None if they delete nothing."""

        def resolve(path: str) -> Steps:
            steps = steps_of(path)
            return steps if steps[0] in OF_RECORD else (KEY, *steps)

        leaves = Leaves()
        maker = RuleMaker(leaves, resolve)
        made: list[SourceRules] = []
        for source in self._sources:
            rules: Sequence[Rule] = ()
            if source.envelope == "debezium":
                rules = _row_deletes(source, maker, {}, {})
            elif source.deletes is not None:
                of_set = deleted_set(source, source.deletes)
                rules = [maker.deletes({}, source.deletes.fields, of_set)]
            # If sources would delete different things, refuse: the record does not identify its
            # source.
            found = [(source.time, rule) for rule in rules]
            known = [(one.source.time, rule) for one in made for rule in one.rules]
            if len(found) > 1 or (known and found and found != known):
                return self._form([SourceRules(source, [EITHER])], leaves)
            if rules and not known:
                made.append(SourceRules(source, rules))
        return self._form(made, leaves) if made else None

    def _of_sources(self, leaves: Leaves, resolve: PathResolver) -> list[SourceRules]:
        """Compile the rules of all sources. resolve: converts their paths to steps in records."""
        made = []
        for source in self._sources:
            maker = RuleMaker(leaves, resolve, source.each)
            rules = plain_rules(source, maker, self._features(source))
            made.append(SourceRules(source, rules, maker.list))
        return made

    def _features(self, source: SourceSettings) -> FeatureSets:
        """The features of the sets that a source names."""
        schema, declared = self._rules.schema, self._rules.features
        of_nodes = source.nodes.node_set if source.nodes is not None else None
        edge_set = schema.edge_set_names.index(source.edge_set) if source.edge_set else 0
        node_set = schema.node_set_names.index(of_nodes) if of_nodes else 0
        return FeatureSets(declared.of_edges[edge_set], declared.of_nodes[node_set])

    def _layout(self, of: SourceRules, leaves: Leaves) -> Layout:
        """Make the layout of a source, after the paths of all sources are numbered."""
        source = of.source
        # Sources of one list share the columns of its elements.
        each = None
        if of.list:
            inner = tuple(
                (n, follow(steps) if steps else None)
                for (inside, steps), n in leaves.of.items()
                if inside == of.list
            )
            each = Each(leaves.of[(), of.list], source.each or "", inner)
        time = source.time or self._time_unit
        return Layout(
            of.rules,
            each,
            source.also,
            self._keys,
            None if time == "record" else Times(time),
            self._rules.schema,
            self._rules.max_feature,
        )

    def _form(
        self,
        made: Sequence[SourceRules],
        leaves: Leaves,
        deleted: Sequence[SourceRules] = (),
        operation: int = -1,
        inlined: int = -1,
        mark: str = "",
    ) -> Form:
        """Make the form of these rules; `leaves` has the numbers of their paths."""
        whole = {n: steps for (inside, steps), n in leaves.of.items() if not inside}
        in_value = [n for n, steps in whole.items() if steps[0] not in OF_RECORD]
        return Form(
            layouts=tuple(self._layout(one, leaves) for one in made),
            deleted=tuple(self._layout(one, leaves) for one in deleted),
            paths=tuple((*inside, *steps) for inside, steps in leaves.of),
            shape=Shape([whole[n] for n in in_value]),
            stand_in=self._stand_in,
            in_value=tuple(in_value),
            of_record=tuple(
                (n, _reader(steps)) for n, steps in whole.items() if steps[0] in OF_RECORD
            ),
            operation=operation,
            inlined=inlined,
            mark=mark,
        )


def _row_deletes(
    source: SourceSettings, maker: RuleMaker, of_nodes: Where, of_edges: Where
) -> list[Rule]:
    """Make the rules of deletes for a row: of the node, or of the edge, that it was.

    of_nodes, of_edges: conditions on a row to be one.
    """
    rules = []
    if source.nodes is not None:
        of_node = DeleteFields(node=source.nodes.fields.id)
        rules.append(maker.deletes(of_nodes, of_node, source.nodes.node_set))
    if source.fields is not None:
        # Without its time, an edge cannot be distinguished from others between its ends.
        fields = source.fields
        if fields.time is None:
            of_rows = maker.conditions(of_edges)
            return [*rules, Rule(type="delete", conditions=of_rows, refuses=NO_TIME)]
        of_edge = DeleteFields(src=fields.src, dst=fields.dst, time=fields.time)
        rules.append(maker.deletes(of_edges, of_edge, source.edge_set))
    return rules


EITHER = Rule(
    type="delete", conditions=(), refuses="it is unknown whether a node or an edge was deleted"
)
"""The rule of null values that could delete different things."""
NO_TIME = "time is record, so it is unknown which edge was deleted"


def _with_one_of_value(leaves: Leaves) -> Leaves:
    """Add a path of the value if there is none: the shape needs one to count the objects."""
    if all(steps[0] in OF_RECORD for inside, steps in leaves.of if not inside):
        leaves.number(("type",))
    return leaves


def _reader(path: Steps) -> Callable[[Any], Any]:
    """Make a function that reads a path of a record's key or headers; it returns None if there is
    nothing."""
    if path[0] == HEADERS:
        name = path[1]

        def header(record: Any) -> Any:
            # Of several headers with this name, the last one counts.
            found = [value for key, value in record.headers or () if key == name]
            return _text(found[-1]) if found else None

        return header
    if len(path) == 1:
        return lambda record: _text(record.key)
    walk = follow(path[1:])

    def of_key(record: Any) -> Any:
        try:
            key = parsed(record.key or b"")
        except BadEvent:
            return None
        # Connect's converter wraps the key with its schema.
        if type(key) is dict and key.keys() == {"schema", "payload"}:
            key = key["payload"]
        return walk(key)

    return of_key


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None

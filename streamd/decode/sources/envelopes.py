"""The forms in which a topic's records come: plain, or in an envelope that others defined.

Of each form it is known where in a record the data and the envelope's own fields lie, so that an
envelope costs no further pass over the record.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from streamd.decode.encoding import Times
from streamd.decode.node_ids import KeyTable
from streamd.decode.sources.cloudevents import ATTRIBUTE
from streamd.decode.sources.paths import Columns, Shape, Steps, follow, parsed
from streamd.decode.sources.rules import (
    FeatureSets,
    Layout,
    Leaves,
    Rule,
    RuleMaker,
    absolute,
    deleted_set,
    plain_rules,
)
from streamd.decode.sources.unsent_values import UnsentValue
from streamd.errors import BadEvent
from streamd.events import Schema
from streamd.settings.sources import DeleteFields, SourceSettings, Where, steps_of

CHANGED = frozenset(("c", "r", "u"))
"""Operations of Debezium that leave a row: created, read by a snapshot, updated."""
DELETED = "d"
TRUNCATED = "t"
"""Debezium's operation that deletes all rows of a table."""


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a source's records. Owner: the source's decoder.

    shape: reads the fields of the value. stand_in: counts as no value. of_record: columns that come
    from a record's key and headers instead.
    """

    layout: Layout
    shape: Shape
    stand_in: UnsentValue
    in_value: tuple[int, ...]
    of_record: tuple[tuple[int, Callable[[Any], Any]], ...]
    operation: int = -1
    """Debezium: column of the operation."""
    inlined: int = -1
    """CloudEvents: column of data that is written as text in base64."""
    mark: str = ""
    """Name of a field that every value has; without it and all paths, a value is none of these."""

    def columns(self, records: Sequence[Any], of_values: Columns) -> Columns | None:
        """All columns of n records; None where one of them needs a look alone."""
        columns: Columns = [[]] * len(self.layout.paths)
        for at, column in zip(self.in_value, of_values, strict=True):
            columns[at] = self.stand_in.without(column)
        for at, read in self.of_record:
            columns[at] = list(map(read, records))
        if self.operation >= 0:
            operations = columns[self.operation]
            if set(map(type, operations)) != {str} or not CHANGED.issuperset(operations):
                return None
        if self.inlined >= 0 and any(data is not None for data in columns[self.inlined]):
            return None
        # Usually some path is met by all, which is cheaper to see than that no value lacks all.
        may_lack = self.mark and all(None in column for column in of_values)
        if may_lack and (None,) * len(of_values) in zip(*of_values, strict=True):
            return None
        return columns

    def check_mark(self, of_value: Sequence[Any], raw: bytes | msgspec.Raw) -> None:
        """Refuse a value that is not in this form; it would be skipped. Raises: BadEvent."""
        if self.mark and of_value.count(None) == len(of_value) and self.mark not in parsed(raw):
            raise BadEvent("missing_field", f"{self.mark} is missing: the source's envelope has it")

    def row(self, record: Any, of_value: Sequence[Any]) -> list[Any]:
        """All values of one record."""
        row = [None] * len(self.layout.paths)
        for at, value in zip(self.in_value, of_value, strict=True):
            row[at] = None if self.stand_in.is_one(value) else value
        for at, read in self.of_record:
            row[at] = read(record)
        return row


def forms_of(source: SourceSettings, maker: "FormMaker", in_json: bool) -> dict[str, Form]:
    """The forms of a source by name. in_json: whether its values are JSON."""
    if source.envelope == "debezium":
        bare = {"bare": maker.debezium(())}
        return bare | ({"wrapped": maker.debezium(("payload",))} if in_json else {})
    if source.envelope == "cloudevents":
        return {"structured": maker.structured(), "binary": maker.binary()}
    # Other formats than JSON have their schema elsewhere, so there is nothing around the data.
    wrapped = source.envelope == "connect" and in_json
    return {"plain": maker.plain(("payload",) if wrapped else ())}


class FormMaker:
    """Makes the forms of a source, which share its features and keys."""

    def __init__(
        self,
        source: SourceSettings,
        sets: FeatureSets,
        keys: KeyTable,
        schema: Schema,
        max_feature: float,
        time_form: str,
    ) -> None:
        self._source = source
        self._sets = sets
        self._keys = keys
        self._schema = schema
        self._max_feature = max_feature
        self._stand_in = UnsentValue(source.unavailable_value)
        self._times = None if time_form == "record" else Times(time_form)

    def plain(self, base: Steps = ()) -> Form:
        """Records whose data lies at `base` of the value."""
        leaves = Leaves()
        rules = plain_rules(self._source, RuleMaker(leaves, absolute(base, ())), self._sets)
        return self._form(rules, _with_one_of_value(leaves), mark=base[0] if base else "")

    def debezium(self, base: Steps) -> Form:
        """Change events, whose operation lies in the object at `base`."""
        leaves = Leaves()
        operation = leaves.number((*base, "op"))
        after = RuleMaker(leaves, absolute((*base, "after"), base))
        before = RuleMaker(leaves, absolute((*base, "before"), base))
        # The row of a label, or of a delete, was neither a node nor an edge.
        no_rows = [rule for rule in (self._source.deletes, self._source.labels) if rule is not None]
        of_nodes = self._source.nodes.where if self._source.nodes is not None else {}
        deletes = [
            *(
                Rule(type="delete", conditions=before.conditions(r.where), skips=True)
                for r in no_rows
            ),
            *self._row_deletes(before, of_nodes, self._source.where),
        ]
        rules = plain_rules(self._source, after, self._sets)
        return self._form([*deletes, *rules], leaves, operation=operation, num_first=len(deletes))

    def structured(self) -> Form:
        """CloudEvents with data and attributes in the value."""
        leaves = Leaves()
        inlined = leaves.number(("data_base64",))
        rules = plain_rules(self._source, RuleMaker(leaves, absolute(("data",), ())), self._sets)
        return self._form(rules, leaves, inlined=inlined, mark="specversion")

    def binary(self) -> Form:
        """CloudEvents whose value is the data, with the attributes in headers."""

        def place(path: str) -> Steps:
            steps = steps_of(path)
            if steps[0] == "$envelope":
                return ("$headers", f"{ATTRIBUTE}{steps[1]}")
            return steps

        leaves = Leaves()
        rules = plain_rules(self._source, RuleMaker(leaves, place), self._sets)
        return self._form(rules, _with_one_of_value(leaves))

    def tombstone(self) -> Form | None:
        """Null values, whose fields are those of the record's key; None where nothing is deleted
        by them."""

        def place(path: str) -> Steps:
            steps = steps_of(path)
            return steps if steps[0] in ("$key", "$headers") else ("$key", *steps)

        leaves = Leaves()
        maker = RuleMaker(leaves, place)
        rules: Sequence[Rule] = ()
        if self._source.envelope == "debezium":
            rules = self._row_deletes(maker, {}, {})
            if len(rules) > 1:
                rules = [Rule(type="delete", conditions=(), refuses=EITHER)]
        elif self._source.deletes is not None:
            rule = self._source.deletes
            rules = [maker.deletes({}, rule.fields, deleted_set(self._source, rule))]
        return self._form(rules[:1], leaves) if rules else None

    def _row_deletes(self, maker: RuleMaker, of_nodes: Where, of_edges: Where) -> list[Rule]:
        """What the delete of a row deletes: the node, or the edge, that the row was.

        of_nodes, of_edges: which rows were one.
        """
        source = self._source
        rules = []
        if source.nodes is not None:
            of_node = DeleteFields(node=source.nodes.fields.id)
            rules.append(maker.deletes(of_nodes, of_node, source.nodes.node_set))
        if source.fields is not None:
            # Without a time of its own an edge cannot be told from others of its ends.
            fields = source.fields
            if fields.time is None:
                return [*rules, Rule(type="delete", conditions=(), refuses=NO_TIME)]
            of_edge = DeleteFields(src=fields.src, dst=fields.dst, time=fields.time)
            rules.append(maker.deletes(of_edges, of_edge, source.edge_set))
        return rules

    def _form(
        self,
        rules: Sequence[Rule],
        leaves: Leaves,
        operation: int = -1,
        inlined: int = -1,
        num_first: int = 0,
        mark: str = "",
    ) -> Form:
        layout = Layout(
            rules, leaves, self._keys, self._times, self._schema, self._max_feature, num_first
        )
        in_value = [n for path, n in leaves.of.items() if path[0] not in ("$key", "$headers")]
        return Form(
            layout,
            Shape([path for path in leaves.of if path[0] not in ("$key", "$headers")]),
            self._stand_in,
            tuple(in_value),
            tuple(
                (n, _reader(path))
                for path, n in leaves.of.items()
                if path[0] in ("$key", "$headers")
            ),
            operation,
            inlined,
            mark,
        )


EITHER = "nothing tells whether a node or an edge was deleted"
NO_TIME = "time is record, so nothing tells which edge was deleted"


def _with_one_of_value(leaves: Leaves) -> Leaves:
    """The leaves with one of the value among them, which tells how many objects it holds."""
    if all(path[0] in ("$key", "$headers") for path in leaves.of):
        leaves.number(("type",))
    return leaves


def _reader(path: Steps) -> Callable[[Any], Any]:
    """A function that reads a path into a record's key or headers; None where there is nothing."""
    if path[0] == "$headers":
        name = path[1]

        def header(record: Any) -> Any:
            # Where a header is there several times, the last counts.
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
        # Connect's converter adds a schema.
        if type(key) is dict and key.keys() == {"schema", "payload"}:
            key = key["payload"]
        return walk(key)

    return of_key


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None

"""Converts unigraph tables to events of a stream, in time order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import structlog

from streamd.clock import Clock
from streamd.decode.rounding import NOTHING
from streamd.decode.time_units import UNIT_WORDS, OtherUnit
from streamd.errors import TFGNNError
from streamd.events import MICROSECONDS, Float32, Int64
from streamd.exchange.key_cells import KeyCells
from streamd.exchange.produce import Outgoing
from streamd.exchange.times import Misfit, Times
from streamd.settings.sets import nearest_of
from streamd.tfgnn.logs.declared import (
    ID,
    KEYS,
    TIME,
    UNIT,
    Declared,
    DeclaredSet,
    metadata_value,
    reversed_edge_set,
)
from streamd.tfgnn.logs.feature_encoding import Encoder
from streamd.tfgnn.logs.node_keys import JSON, checked_form, key_of, reader_of_ids
from streamd.tfgnn.records.row_names import Location, TableRows
from streamd.tfgnn.sampling.draws import Array
from streamd.tfgnn.sampling.tables_graph import Progress, Read, read_tables
from streamd.tfgnn.schema.messages import EdgeSet, GraphSchema
from streamd.tfgnn.tables.reading import Rows, table_path

logger = structlog.get_logger()
EVENTS = 4096
"""Events per batch."""
OF_EDGES = (TIME, "time", "#source", "#target")
"""Columns of edges that are no features."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeOptions:
    """Options for the times of rows of edges.

    stream_unit: `stream.time_unit` of the settings. max_ahead_seconds: largest time ahead of the
    clock. column: name of the column of times, None for `#time` or `time`. unit: of its integers,
    None for the unit in the schema's metadata of `#time`, or else stream_unit. first_us: time in
    microseconds of the first row of tables without times, None if all tables have times. step_us:
    interval of such rows.
    """

    stream_unit: str
    max_ahead_seconds: float
    column: str | None = None
    unit: str | None = None
    first_us: int | None = None
    step_us: int = 1_000_000


@dataclass(slots=True)
class _Nodes:
    """The nodes of a set, numbered in order of their first occurrence in tables. Owner:
    `TableEvents`.

    form: of ids (`node_keys`). cells: parses ids of the plain form. number_of: number by id. keys:
    key by number. named: numbers of the nodes with edges. row_number: node number of each row of
    the set's table. values_ND: features of the rows. location: names the rows in errors.
    """

    form: str
    cells: KeyCells
    number_of: dict[bytes, int] = field(default_factory=dict)
    keys: list[str | int] = field(default_factory=list)
    named: set[int] = field(default_factory=set)
    row_number: list[int] = field(default_factory=list)
    values_ND: Float32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    location: TableRows = field(default_factory=TableRows)

    def numbers(self, ids: Array, location: Location, column: str) -> Int64:
        """The number of each id, int64[R]; new ids get the next numbers. Raises: TFGNNError."""
        found, known = np.empty(len(ids), np.int64), self.number_of
        for row, id in enumerate(ids.tolist()):
            number = known.get(id)
            if number is None:
                number = known[id] = len(self.keys)
                try:
                    self.keys.append(key_of(id, self.form, self.cells))
                except (ValueError, RecursionError) as error:
                    raise TFGNNError(
                        f"{location(row)}: {column} is no key: {error}.",
                        error.action if isinstance(error, Misfit) else "correct it.",
                    ) from None
            found[row] = number
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Edges:
    """The edges of a set, in the order of its table.

    source_E, target_E: numbers of nodes. time_E: microseconds, None if the table has no times.
    columns: of the table, for errors. location: names the rows in errors.
    """

    name: str
    source: str
    target: str
    source_E: Int64
    target_E: Int64
    time_E: Int64 | None
    values_ED: Float32
    columns: tuple[str, ...]
    location: TableRows

    def __len__(self) -> int:
        return len(self.source_E)


class TableEvents:
    """The events of a schema's tables, held in memory. Immutable once made.

    Node features come first, so that they apply from the start. Edges follow in time order; edges
    of equal times are ordered by the settings' sets, then by the tables' rows. left_out:
    descriptions of unused columns. rounded: counts of rounded feature values.
    """

    def __init__(
        self,
        declared: Declared,
        schema: GraphSchema,
        base: Path,
        options: TimeOptions,
        clock: Clock,
        progress: Progress = lambda what, done, total: None,
    ) -> None:
        """Read the tables. declared: the sets of the settings. base: folder of relative file names.

        Raises: TFGNNError or SettingsError with the set or row that does not fit the settings.
        """
        self._schema = schema
        self._base = base
        self._options = options
        self._clock = clock
        self._declared = declared
        self._summaries: list[str] = []
        self._times: list[Times] = []
        """One for each table of edges."""
        self.left_out: list[str] = []
        self.rounded = NOTHING
        names = self._check_sets()
        self._nodes = {
            name: _Nodes(checked_form(metadata_value(one, KEYS), name), reader_of_ids(name))
            for name, one in sorted(schema.node_sets.items())
        }

        # Edges first: a node with edges and without features needs no event of its own.
        read = read_tables(base, progress)
        self._edges = [self._read_edges(name, read) for name in names]
        for name, one in sorted(schema.node_sets.items()):
            if table_path(one, base) is not None:
                self._read_nodes(name, read)
        self._make_up_times()
        self._set_E, self._row_E, self._time_E = self._time_order()
        self._node_rows = [
            (name, row) for name in self._declared.node_sets for row in self._wanted_nodes(name)
        ]

    @property
    def num_nodes(self) -> int:
        """Number of nodes with a row or with edges."""
        # Two different JSON ids may be the same key.
        every = self._nodes.values()
        return sum(len(set(n.keys) if n.form == JSON else n.keys) for n in every)

    @property
    def num_node_events(self) -> int:
        """Number of node events; not every node needs one."""
        return len(self._node_rows)

    @property
    def num_events(self) -> int:
        """Number of events of nodes and edges."""
        return self.num_node_events + self.num_edges

    @property
    def num_edges(self) -> int:
        """Number of events of edges."""
        return len(self._time_E)

    @property
    def first_us(self) -> int | None:
        """The time of the first edge in microseconds, None if there is no edge."""
        return int(self._time_E[0]) if self.num_edges else None

    @property
    def times(self) -> str:
        """Description of the range of times and of their format."""
        return "; ".join(self._summaries) or "no times"

    def _check_sets(self) -> list[str]:
        """The edge sets to read, in the order of the settings. Raises: TFGNNError if the settings
        do not declare a set, or declare it differently."""
        action = (
            "declare it in graph; `streamd config --from-schema` prints settings to start from."
        )
        for name in sorted(self._schema.node_sets):
            if name not in self._declared.node_sets:
                near = nearest_of(name, self._declared.node_sets)
                raise TFGNNError(f"The settings declare no node set {name!r}{near}.", action)
        wanted = [
            n for n in sorted(self._schema.edge_sets) if reversed_edge_set(n, self._schema) is None
        ]
        for name in wanted:
            one, declared = self._schema.edge_sets[name], self._declared.edge_sets.get(name)
            if declared is None:
                near = nearest_of(name, self._declared.edge_sets)
                raise TFGNNError(f"The settings declare no edge set {name!r}{near}.", action)
            if (declared.source, declared.target) != (one.source, one.target):
                raise TFGNNError(
                    f"Edge set {name!r} goes from {one.source} to {one.target}, the settings "
                    f"declare {declared.source} to {declared.target}.",
                    "correct one of them.",
                )
        return [name for name in self._declared.edge_sets if name in wanted]

    def _note(self, location: str, encoder: Encoder) -> None:
        """Record the unused columns of a set, and its rounded values."""
        self.rounded += encoder.rounded
        self.left_out += [f"{location}, {name}" for name in encoder.left_out]

    def _read_edges(self, name: str, read: Read) -> _Edges:
        """Read the edges of a table. Raises: TFGNNError, SettingsError."""
        one, declared = self._schema.edge_sets[name], self._declared.edge_sets[name]
        column = self._options.column
        encoder = Encoder(declared, one, "edge set", (*OF_EDGES, column or TIME))
        unit = self._unit(one)
        times = Times(unit, "us", self._options.max_ahead_seconds, self._clock)
        self._times.append(times)
        sources, targets = self._nodes[one.source], self._nodes[one.target]
        none = np.zeros(0, np.int64)
        source, target, values = [none], [none], [np.zeros((0, _width(declared)), np.float32)]
        time: list[Int64 | None] = []
        columns: tuple[str, ...] = ()
        names = TableRows()
        for rows in read(name, one):
            location = rows.location
            names.add(rows.first, location)
            columns = columns or _columns(rows)
            assert rows.source is not None and rows.target is not None
            source.append(sources.numbers(rows.source, location, "#source"))
            target.append(targets.numbers(rows.target, location, "#target"))
            values.append(encoder.numbers(rows, location))
            time.append(self._time_of(rows, times, location))
            if (time[-1] is None) != (time[0] is None):
                raise TFGNNError(
                    f"{location(0)}: edge set {name!r} has times in some files.",
                    "write them in all.",
                )
        self._note(f"edge set {name}", encoder)
        # Join the parts, and note which nodes have edges.
        known = [t for t in time if t is not None]
        edges = _Edges(
            name=name,
            source=one.source,
            target=one.target,
            source_E=np.concatenate(source),
            target_E=np.concatenate(target),
            time_E=np.concatenate(known) if known else None,
            values_ED=np.concatenate(values),
            columns=columns,
            location=names,
        )
        if known and len(edges):
            self._summaries.append(f"{name}: {times.summary()}")
        sources.named.update(np.unique(edges.source_E).tolist())
        targets.named.update(np.unique(edges.target_E).tolist())
        return edges

    def _unit(self, one: EdgeSet) -> str:
        """The unit of integers in a table's column of times."""
        if self._options.unit is not None:
            return self._options.unit
        unit = metadata_value(one, UNIT) if self._options.column in (None, TIME) else None
        return unit if unit in UNIT_WORDS else self._options.stream_unit

    def _time_of(self, rows: Rows, times: Times, location: Location) -> Int64 | None:
        """The times of rows in microseconds, int64[R], None if they have none. Raises: TFGNNError,
        SettingsError."""
        column = self._options.column
        found: Any = rows.time
        if column is not None and column not in (TIME, "time"):
            found = rows.features.get(column, rows.others.get(column))
        if found is None:
            return None
        if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype.kind not in "iufO":
            raise TFGNNError(f"{location(0)}: column {column!r} has no times.", "name another.")
        # Integers of a known unit are converted together; other values are parsed one by one.
        if found.dtype.kind in "iu" and times.has_unit:
            return _scale_times(found, times, location)
        out = np.empty(len(found), np.int64)
        for row, value in enumerate(found.tolist()):
            cell = value.decode(errors="replace") if isinstance(value, bytes) else value
            try:
                out[row] = times.read(cell)
            except Misfit as misfit:
                raise misfit.at(f"{location(row)}, column {column!r}") from None
        return out

    def _read_nodes(self, name: str, read: Read) -> None:
        """Read the table of a node set. Raises: TFGNNError."""
        one, declared = self._schema.node_sets[name], self._declared.node_sets[name]
        nodes = self._nodes[name]
        encoder = Encoder(declared, one, "node set", (ID,))
        values = [np.zeros((0, _width(declared)), np.float32)]
        seen: set[int] = set()
        for rows in read(name, one):
            location = rows.location
            nodes.location.add(rows.first, location)
            assert rows.ids is not None
            numbers = nodes.numbers(rows.ids, location, ID).tolist()
            for row, number in enumerate(numbers):
                if number in seen:
                    first = nodes.location((nodes.row_number + numbers).index(number))
                    raise TFGNNError(
                        f"{location(row)}: the id {nodes.keys[number]!r} occurs twice, first in "
                        f"{first}.",
                        "remove one of the rows.",
                    )
                seen.add(number)
            nodes.row_number += numbers
            values.append(encoder.numbers(rows, location))
        nodes.values_ND = np.concatenate(values)
        if without := nodes.named - seen:
            logger.warning(
                "tfgnn_nodes_without_row",
                node_set=name,
                nodes=len(without),
                example=repr(nodes.keys[min(without)]),
                meaning="edges name them, so they are in the graph, but without features",
            )
        self._note(f"node set {name}", encoder)

    def _wanted_nodes(self, name: str) -> list[int]:
        """The rows of a node set that need an event: those with features, and those of nodes
        without edges."""
        nodes = self._nodes.get(name)
        if nodes is None:
            return []
        has_values = np.count_nonzero(nodes.values_ND, axis=1).tolist()
        return [
            row
            for row, number in enumerate(nodes.row_number)
            if has_values[row] or number not in nodes.named
        ]

    def _make_up_times(self) -> None:
        """Assign times to edges without times, by the options. Raises: TFGNNError."""
        options = self._options
        filled = [e for e in self._edges if len(e)]
        untimed = [e for e in filled if e.time_E is None]
        # --time-column must be in some table, even if other tables get made-up times.
        is_nowhere = options.column is not None and len(untimed) == len(filled)
        if untimed and (options.first_us is None or is_nowhere):
            raise self._no_times(untimed[0])
        first = options.first_us or 0
        for i, edges in enumerate(self._edges):
            if edges.time_E is not None or not len(edges):
                continue
            # The times of a set start after those of the set before.
            last = first + (len(edges) - 1) * options.step_us
            times = Times("us", "us", self._options.max_ahead_seconds, self._clock)
            try:
                times.check(last, last)
            except Misfit:
                raise TFGNNError(
                    f"Edge set {edges.name!r} has {len(edges)} rows without times, the last of "
                    "which would be ahead of the clock.",
                    "give an earlier --first-time or a smaller --step-seconds.",
                ) from None
            times.extend(first, last, "the order of the rows")
            self._summaries.append(f"{edges.name}: {times.summary()}")
            time_E = first + np.arange(len(edges)) * options.step_us
            self._edges[i] = replace(edges, time_E=time_E)
            first = last + options.step_us

    def _no_times(self, edges: _Edges) -> TFGNNError:
        """The error for edges without times, if --first-time is not given."""
        column = self._options.column
        what = "times" if column is None else f"column {column!r} of times"
        return TFGNNError(
            f"Edge set {edges.name!r} has no {what}{nearest_of(column or TIME, edges.columns)}.",
            "name the column by --time-column (in TFRecord files the schema must declare it), or "
            "give --first-time: then the rows get made-up times, one after the other.",
        )

    def _time_order(self) -> tuple[Int64, Int64, Int64]:
        """Index of the edge set, row and time of each edge, in time order: int64[E] each."""
        none = [np.zeros(0, np.int64)]
        times = [none[0] if e.time_E is None else e.time_E for e in self._edges]
        sets = [np.full(len(t), i) for i, t in enumerate(times)]
        rows = [np.arange(len(t)) for t in times]
        time_E, set_E, row_E = (np.concatenate(none + parts) for parts in (times, sets, rows))
        order = np.argsort(time_E, kind="stable")
        return set_E[order], row_E[order], time_E[order]

    def location_of(self, number: int) -> str:
        """Text with file and row of an event, by the event's number from 1."""
        at = number - 1
        if at < self.num_node_events:
            name, row = self._node_rows[at]
            return self._nodes[name].location(row)
        at -= self.num_node_events
        edges = self._edges[int(self._set_E[at])]
        return edges.location(int(self._row_E[at]))

    def find_other_unit(self) -> OtherUnit | None:
        """Another unit in which all times of an edge set would be plausible, if there is one."""
        return next((found for of in self._times if (found := of.find_other_unit())), None)

    def events(self, unit: str) -> Iterator[Outgoing]:
        """Yield all events as JSON. unit: of their times. Raises: TFGNNError with a row whose time
        is no multiple of the unit."""
        encode = msgspec.json.Encoder().encode
        scale = MICROSECONDS[unit]
        finer = np.flatnonzero(self._time_E % scale)
        if len(finer):
            at = int(finer[0])
            raise TFGNNError(
                f"{self.location_of(self.num_node_events + at + 1)}: its time of "
                f"{self._time_E[at]} microseconds is finer than {unit}.",
                "set stream.time_unit to us, or round it.",
            )
        number = 0
        for name, row in self._node_rows:
            number += 1
            key, event = self._node_event(name, row)
            yield Outgoing(str(key).encode(), encode(event), None, number)
        # In batches: converting numpy values one by one is slow.
        for a in range(0, self.num_edges, EVENTS):
            some = slice(a, a + EVENTS)
            sets, rows = self._set_E[some].tolist(), self._row_E[some].tolist()
            times = (self._time_E[some] // scale).tolist()
            for one, row, time in zip(sets, rows, times, strict=True):
                number += 1
                event = self._edge_event(self._edges[one], row)
                event["time"] = time
                yield Outgoing(str(event["src"]).encode(), encode(event), time, number)

    def _node_event(self, name: str, row: int) -> tuple[str | int, dict[str, Any]]:
        """The key of a row of a node set, and its event."""
        nodes = self._nodes[name]
        key = nodes.keys[nodes.row_number[row]]
        event: dict[str, Any] = {"type": "node", "id": key}
        if self._declared.schema.num_node_sets > 1:
            event["node_set"] = name
        if nodes.values_ND.shape[1]:
            event["features"] = nodes.values_ND[row].tolist()
        return key, event

    def _edge_event(self, edges: _Edges, row: int) -> dict[str, Any]:
        """The event of a row of an edge set, without its time."""
        event: dict[str, Any] = {
            "src": self._nodes[edges.source].keys[edges.source_E[row]],
            "dst": self._nodes[edges.target].keys[edges.target_E[row]],
        }
        if self._declared.schema.num_edge_sets > 1:
            event["edge_set"] = edges.name
        if edges.values_ED.shape[1]:
            event["features"] = edges.values_ED[row].tolist()
        return event


def _columns(rows: Rows) -> tuple[str, ...]:
    """The columns of rows that could contain times."""
    of_times = (TIME,) if rows.time is not None else ()
    return tuple(dict.fromkeys((*of_times, *rows.features, *rows.others)))


def _width(declared: DeclaredSet) -> int:
    """Number of columns of the features of a set."""
    width: int = declared.columns.stop - declared.columns.start
    return width


def _scale_times(found: Array, times: Times, location: Callable[[int], str]) -> Int64:
    """Convert integer times to microseconds. Raises: SettingsError with a row out of range."""
    if not len(found):
        return np.zeros(0, np.int64)
    # Checking the smallest and the largest is enough.
    for row in (int(found.argmin()), int(found.argmax())):
        try:
            times.read(int(found[row]))
        except Misfit as misfit:
            raise misfit.at(location(row)) from None
    return times.of_integers(found.astype(np.int64))

"""Appends history to a log without Kafka.

Events are decoded, checked and built into columns as live ones are, but the first event that does
not fit ends the import.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from streamd.clock import Clock
from streamd.decode.block import NO_STAMP, ROW, Block, Edges, Origin, edge_block, has_time, joined
from streamd.decode.checks import rules_of
from streamd.decode.decoder import Decoder, make_decoder
from streamd.decode.rounding import Rounded
from streamd.decode.time_units import OtherUnit
from streamd.errors import BadEvent, StreamdError
from streamd.eventlog.unused_log import remove_unused_log
from streamd.eventlog.writer import LogWriter
from streamd.events import (
    DELETE,
    EDGE,
    LABEL,
    MAX_TIME_US,
    NODE,
    Float32,
    Int64,
    Position,
    Progress,
    Schema,
)
from streamd.exchange.produce import Outgoing
from streamd.exchange.row_form import RowForm, remedy_of
from streamd.exchange.times import other_unit_words
from streamd.ingest.event_log import Log
from streamd.ingest.first_times import has_no_times
from streamd.ingest.loop import MAX_COMMIT_EVENTS
from streamd.ingest.order.batch_builder import BatchBuilder
from streamd.settings.loading import Settings, schema_of

START = Position(0)
RECORDS = 4096
"""Rows of a table that are decoded together; `progress` is called after them."""
KINDS = {EDGE: "", NODE: " (node features)", LABEL: " (label)", DELETE: " (delete)"}
"""Text that errors add to a row's number, because each kind of row in a TGUF file has its own
numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRow:
    """A row of a file in the form of a Kafka record. offset: its number, from 1. timestamp:
    milliseconds, -1 for none."""

    offset: int
    value: bytes
    timestamp: int = -1
    timestamp_type: int = 0
    headers: tuple[()] = ()
    key: bytes | None = None


@contextmanager
def open_loader(
    settings: Settings,
    clock: Clock,
    name: str,
    topic: str = "",
    edge_set: int = 0,
    location_of: Callable[[int], str] | None = None,
    find_other_unit: Callable[[], OtherUnit | None] | None = None,
    time_column: str = "",
    is_kept: bool = True,
    row_form: RowForm | None = None,
) -> Iterator["Loader"]:
    """Open a `Loader` of the log in `data_dir`, which is created if it does not exist.

    1. Take the writer's lock: it refuses while ingest runs, before a row is read.
    2. Yield the loader. Commits before an error stay in the log; the error gets their number of
       events, if the log is kept.
    3. Release the lock. If an error came before the first commit, a log that step 1 created is
       removed.

    Args: find_other_unit: returns the other unit that all times so far look like, None for none; by
    default that of the rows' source. time_column: the column of times, for errors. row_form: of
    the rows, for errors; by default their times are in `stream.time_unit`. Others: as of `Loader`.
    Times of streamd's own events are in microseconds, not in `stream.time_unit`.
    Raises: LockedError while ingest runs.
    """
    # 1. Lock.
    with (
        remove_unused_log(settings.data_dir),
        closing(
            LogWriter(settings.data_dir, schema_of(settings), settings.ingest.segment_edges)
        ) as writer,
    ):
        form = row_form or RowForm(time_unit=settings.stream.time_unit)
        decoder = _make_decoder(settings, writer.schema, topic, form)
        s = settings.ingest
        find = find_other_unit or (lambda: decoder.other_unit)
        other_unit = (lambda: None) if s.accept_first_times else find
        loader = Loader(
            writer,
            decoder,
            s.max_nodes,
            clock,
            name,
            topic,
            edge_set,
            location_of,
            other_unit,
            time_column,
            form,
        )
        # 2. Yield. Commits before an error stay in the log.
        try:
            yield loader
        except StreamdError as error:
            # The operator must know that a part of the file is in the log.
            if is_kept:
                error.args = (f"{error} Events appended before: {loader.num_events:,}.",)
            raise


def _make_decoder(settings: Settings, schema: Schema, topic: str, form: RowForm) -> Decoder:
    """Make the decoder of the rows of a topic's source; without a topic, of streamd's own events
    with times in microseconds. form: of these events' rows."""
    if topic:
        return make_decoder(settings, schema)
    rules = replace(rules_of(settings, schema), time_unit="us", unit_setting="")
    return Decoder(rules, form.time_unit, form.names)


class Loader:
    """Appends events in time order to a log. Owner: the thread that owns the log's writer.

    Args:
      log: the log.
      decoder: of the rows.
      max_nodes: maximum nodes of the log.
      clock: wall clock.
      name: of the file, for errors.
      topic: of the source that maps the rows; "" for streamd's own events.
      edge_set: number of the set of edges that are given as columns; default 0.
      location_of: names an event by its number, for errors; by default as row of the file.
      other_unit: returns the other unit that all times so far look like; such times are refused as
        the first of a log. None by default.
      time_column: the column of times, for errors; "" if there is not exactly one.
      row_form: the form of the rows, for errors.
    """

    def __init__(
        self,
        log: Log,
        decoder: Decoder,
        max_nodes: int,
        clock: Clock,
        name: str,
        topic: str = "",
        edge_set: int = 0,
        location_of: Callable[[int], str] | None = None,
        other_unit: Callable[[], OtherUnit | None] = lambda: None,
        time_column: str = "",
        row_form: RowForm | None = None,
    ) -> None:
        # The log, and the source of its rows.
        self._topic = topic
        self.edge_set = edge_set
        self._log = log
        self._decoder = decoder
        self._clock = clock
        self._name = name
        self._other_unit = other_unit
        self._time_column = time_column
        self._row_form = row_form or RowForm(time_unit="us")
        file = self._row_form.file
        by_default = file.position if file else (lambda number: f"{name} row {number}")
        self._location_of = location_of or by_default
        # Late events are refused, not moved to the watermark: an import must keep its times.
        self._builder = BatchBuilder(
            log.schema, log.keys, max_nodes, "dead_letter", log.count_edges
        )
        self._num_rows = {EDGE: 0, LABEL: 0, NODE: 0}
        self.num_events = 0
        self.first_edge = log.num_edges
        self.first_us = MAX_TIME_US
        self.last_us = -1

    @property
    def log(self) -> Log:
        """The log that is appended to."""
        return self._log

    @property
    def watermark(self) -> int:
        """The log's watermark: the time of its latest event, microseconds."""
        return self._log.watermark

    @property
    def rounded(self) -> Rounded:
        """The feature values of tables that were rounded so far."""
        return self._decoder.rounded

    def rows(
        self,
        events: Iterator[Outgoing],
        progress: Callable[[int], None] = lambda _: None,
        start: Position = START,
        stored: Callable[[Position], Progress] = lambda _: Progress(),
    ) -> int:
        """Append the events of a table.

        Args: progress: called with the number of events so far. start: number of rows, and of
        events of the next ones, that are in the log already. stored: the progress to commit with
        the rows before a position, counted as `start` is.
        Returns: their number. Raises: StreamdError naming the first row that does not fit.
        """
        pending: list[FileRow] = []
        done, skip = start.offset, start.index
        for event in islice(events, done, None):
            pending.append(FileRow(offset=event.row, value=event.value))
            if len(pending) >= RECORDS:
                self._decode(pending, done, skip, stored)
                done, skip = done + len(pending), 0
                pending.clear()
                progress(self.num_events)
        self._decode(pending, done, skip, stored)
        progress(self.num_events)
        return self.num_events

    def _decode(
        self,
        pending: Sequence[FileRow],
        done: int,
        skip: int,
        stored: Callable[[Position], Progress],
    ) -> None:
        """Decode and append rows. done: number of rows before them. skip: number of their events
        that are in the log already. stored: as of `rows`. Raises: StreamdError."""
        if not pending:
            return
        block, rejected = self._decoder.decode(pending, 0, self._clock.now_us(), self._topic)
        for r in rejected:
            raise StreamdError(
                f"{self._location_of(r.offset)}: {r.error} ({r.reason}).",
                self._row_form.action(r),
            )
        block = block.take(np.arange(skip, len(block))) if skip else block
        time = block.rows["time"][has_time(block.rows)]
        if len(time):
            self.first_us = min(self.first_us, int(time.min()))
            self.last_us = max(self.last_us, int(time.max()))
        _fill_times(block, self._log.watermark)

        def after(count: int) -> Progress:
            is_whole = count == len(block)
            return stored(
                Position(done + len(pending)) if is_whole else Position(done, skip + count)
            )

        self.append(block, after=after)

    def _check_first_times(self, blocks: Sequence[Block]) -> None:
        """Refuse times that look like another unit as the first of a log. Raises: StreamdError
        naming the first row that has a time."""
        found = self._other_unit() if has_no_times(self._log) else None
        if found is None:
            return
        # Skip deletes and node features, which may have got the log's time.
        timed = [block.rows[np.isin(block.rows["kind"], (EDGE, LABEL))] for block in blocks]
        first = next((rows[0] for rows in timed if len(rows)), None)
        position = self._name
        if first is not None:
            position = self._location_of(int(first["offset"]))
            found = replace(found, example_us=int(first["time"]))
        raise StreamdError(*other_unit_words(found, position, self._time_column))

    def edges(self, src_E: Int64, dst_E: Int64, time_E: Int64, values_ED: Float32) -> Block:
        """Make a block of edges between nodes with integer keys. src_E, dst_E, time_E: int64[E],
        time in microseconds. values_ED: features of the set, float32[E, D]."""
        schema = self._log.schema
        of_src, of_dst = schema.ends_of(self.edge_set)
        a = self._numbers(src_E, of_src)
        b = self._numbers(dst_E, of_dst)
        rows_ED = schema.edge_rows(self.edge_set, values_ED)
        origin = Origin(
            source=0,
            now_us=MAX_TIME_US,
            offset=self._next_rows(EDGE, len(src_E)),
            item=0,
            stamp=NO_STAMP,
        )
        return edge_block(Edges(time_E, a, b, rows_ED), origin)

    def labels(self, node_L: Int64, time_L: Int64, target_LD: Float32) -> Block:
        """Make a block of labels of nodes with integer keys. node_L, time_L: int64[L], time in
        microseconds. target_LD: float32[L, D]."""
        return self._of_nodes(LABEL, node_L, time_L, target_LD)

    def node_features(self, node_F: Int64, values_FD: Float32) -> Block:
        """Make a block of node features, in force from the end of the log on. node_F: integer keys,
        int64[F]. values_FD: features of the set, float32[F, D]."""
        rows_FD = self._log.schema.node_rows(self._node_set, values_FD)
        return self._of_nodes(NODE, node_F, np.full(len(node_F), self._log.watermark), rows_FD)

    def _of_nodes(self, kind: int, node: Int64, time: Int64, values: Float32) -> Block:
        """Make a block of one kind of event about nodes. values: features or targets, one row an
        event."""
        rows = np.zeros(len(node), ROW)
        rows["time"] = time
        rows["kind"] = kind
        rows["a"] = self._numbers(node, self._node_set)
        rows["b"] = -1
        rows["extra"] = np.arange(len(node))
        rows["offset"] = self._next_rows(kind, len(node))
        return Block(
            rows,
            np.zeros((len(node), self._log.schema.edge_feature_dim), np.float32),
            values.tolist(),
        )

    def _next_rows(self, kind: int, count: int) -> Int64:
        """Take the next numbers of a kind of row in the file, from 1."""
        first = self._num_rows[kind] + 1
        self._num_rows[kind] += count
        return np.arange(first, first + count)

    @property
    def _node_set(self) -> int:
        """Number of the node set of labels and features: that of the source nodes of `edge_set`."""
        return self._log.schema.ends_of(self.edge_set)[0]

    def _numbers(self, nodes: Int64, node_set: int) -> Int64:
        """Look up the nodes' keys in the key table. Returns: int64[n] numbers. Raises:
        StreamdError."""
        # Look up each node once, however many rows contain it.
        distinct, inverse = np.unique(nodes, return_inverse=True)
        keys: list[int] = distinct.tolist()
        try:
            numbers = [self._decoder.keys.number(k, "node", node_set) for k in keys]
            return np.array(numbers, np.int64)[inverse]
        except BadEvent as error:
            raise StreamdError(
                f"{self._name}: a node id does not fit: {error}.", "correct it in the file."
            ) from None

    def append(
        self, *blocks: Block, after: Callable[[int], Progress] = lambda _: Progress()
    ) -> None:
        """Commit blocks merged by time. after: the progress to commit with so many events of them.

        1. Refuse first times that look like another unit: a log's time never goes back.
        2. Merge the blocks by time, in their order at equal times. One block must be in order
           itself.
        3. Commit in parts, each within one segment. The first refused row ends the import; the
           parts before it stay in the log.

        Raises: StreamdError naming a row that does not fit, or the unit that the first times look
        like.
        """
        # 1. Refuse first times of another unit.
        self._check_first_times(blocks)
        block = joined([b for b in blocks if len(b)]) if any(len(b) for b in blocks) else None
        if block is None:
            return

        # 2. Merge. One block must be in order; several are merged, in their order at equal times.
        time = block.rows["time"]
        if (time[1:] < time[:-1]).any():
            if len(blocks) == 1:
                early = int(np.flatnonzero(time[1:] < time[:-1])[0]) + 1
                raise StreamdError(
                    f"{self._location_of(int(block.rows['offset'][early]))} "
                    "is earlier than the row before it.",
                    "sort the file by time, or add --sort.",
                )
            block = block.take(np.argsort(time, kind="stable"))

        # 3. Commit in parts, each within one segment.
        first = 0
        while first < len(block):
            end = min(first + min(self._log.remaining_rows(), MAX_COMMIT_EVENTS), len(block))
            part = block.take(np.arange(first, end))
            keys = self._decoder.keys
            batch, watermark, refused = self._builder.build(
                part, keys.keys, keys.epoch, self._log.watermark, self._log.num_nodes
            )
            # The first refused row ends the import.
            for r in (one for one in refused if not one.is_skipped):
                row = part.rows[r.row]
                raise StreamdError(
                    f"{self._location_of(int(row['offset']))}{KINDS[int(row['kind'])]}: "
                    f"{r.error} ({r.reason}).",
                    remedy_of(r.reason),
                )
            self._log.commit(batch, after(end), watermark)
            self.num_events += end - first
            first = end


def _fill_times(block: Block, watermark: int) -> None:
    """Give deletes and node features without a time the latest time before them."""
    rows = block.rows
    if len(rows) and not has_time(rows).all():
        # The largest time so far, starting with the log's.
        so_far = np.maximum.accumulate(np.where(has_time(rows), rows["time"], watermark))
        rows["time"] = np.where(has_time(rows), rows["time"], so_far)

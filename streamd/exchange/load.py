"""History into a log without Kafka: the same decoding, checks and columns as live events, but any
misfit ends it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from streamd.clock import Clock
from streamd.errors import BadEvent, StreamdError
from streamd.events import DELETE, EDGE, LABEL, NODE, Float32, Int64, Key, Progress
from streamd.exchange.produce import Outgoing
from streamd.ingest.block import ROW, Block, has_time, joined
from streamd.ingest.checks import edge_block, rules_of
from streamd.ingest.columns import BatchBuilder
from streamd.ingest.decode import Decoder
from streamd.ingest.event_log import Log
from streamd.ingest.loop import MAX_COMMIT_EVENTS
from streamd.settings import Settings

RECORDS = 4096
REMEDY = {
    "late": "a log only grows forward in time: import into a new data_dir.",
    "node_limit": "raise ingest.max_nodes.",
}
KINDS = {EDGE: "", NODE: " (node features)", LABEL: " (label)", DELETE: " (delete)"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A row of a file as the decoder takes Kafka's records; offset: its number from 1."""

    offset: int
    value: bytes
    timestamp: int = -1
    timestamp_type: int = 0
    headers: tuple[()] = ()
    key: bytes | None = None


class Loader:
    """Appends events in time order to a log, all times in microseconds whatever `stream.time_unit`
    is.

    name: what errors call the file. Owner: one thread, which also owns the log's writer.
    """

    def __init__(self, settings: Settings, log: Log, clock: Clock, name: str) -> None:
        self._log = log
        self._clock = clock
        self._name = name
        self._decoder = Decoder(replace(rules_of(settings, log.schema), time_unit="us"))
        self._builder = BatchBuilder(
            log.schema, log.keys, settings.ingest.max_nodes, "dead_letter", log.has_edge
        )
        self._num_rows = {EDGE: 0, LABEL: 0, NODE: 0}
        self.num_events = 0

    def rows(
        self, events: Iterator[Outgoing], progress: Callable[[int], None] = lambda _: None
    ) -> int:
        """Append the events of a file. Returns: how many. Raises: StreamdError naming the first row
        that does not fit."""
        pending: list[_Row] = []
        for event in events:
            pending.append(_Row(offset=event.row, value=event.value))
            if len(pending) >= RECORDS:
                self._decode(pending)
                progress(self.num_events)
        self._decode(pending)
        progress(self.num_events)
        return self.num_events

    def _decode(self, pending: list[_Row]) -> None:
        if not pending:
            return
        block, rejected = self._decoder.decode(pending, 0, self._clock.now_us())
        for r in rejected:
            raise StreamdError(
                f"{self._name} row {r.offset}: {r.error} ({r.reason}).", "correct it in the file."
            )
        pending.clear()
        _place_in_order(block, self._log.watermark)
        self.append(block)

    def edges(self, src_E: Int64, dst_E: Int64, time_E: Int64, values_ED: Float32) -> Block:
        """Edges between nodes with integer keys as a block."""
        a, b = self._numbers(src_E), self._numbers(dst_E)
        return edge_block(time_E, a, b, values_ED, self._next_rows(EDGE, len(src_E)), 0, 0)

    def labels(self, node_L: Int64, time_L: Int64, target_LD: Float32) -> Block:
        """Labels of nodes with integer keys as a block."""
        return self._of_nodes(LABEL, node_L, time_L, target_LD)

    def node_features(self, node_F: Int64, values_FD: Float32) -> Block:
        """Features that come into force at the end of the log, as a block."""
        return self._of_nodes(NODE, node_F, np.full(len(node_F), self._log.watermark), values_FD)

    def _of_nodes(self, kind: int, node: Int64, time: Int64, values: Float32) -> Block:
        rows = np.zeros(len(node), ROW)
        rows["time"], rows["kind"], rows["a"], rows["b"] = time, kind, self._numbers(node), -1
        rows["extra"], rows["offset"] = np.arange(len(node)), self._next_rows(kind, len(node))
        return Block(
            rows,
            np.zeros((len(node), self._log.schema.edge_feature_dim), np.float32),
            values.tolist(),
        )

    def _next_rows(self, kind: int, count: int) -> Int64:
        first = self._num_rows[kind] + 1
        self._num_rows[kind] += count
        return np.arange(first, first + count)

    def _numbers(self, nodes: Int64) -> Int64:
        distinct, place = np.unique(nodes, return_inverse=True)
        keys: list[Key] = distinct.tolist()
        try:
            return np.array([self._decoder.keys.number(k, "node") for k in keys], np.int64)[place]
        except BadEvent as error:
            raise StreamdError(
                f"{self._name}: a node id does not fit: {error}.", "correct it in the file."
            ) from None

    def append(self, *blocks: Block) -> None:
        """Commit blocks merged by time. Raises: StreamdError where one is behind what the log has."""
        block = joined([b for b in blocks if len(b)]) if any(len(b) for b in blocks) else None
        if block is None:
            return
        time = block.rows["time"]
        if (time[1:] < time[:-1]).any():
            if len(blocks) == 1:
                at = int(np.flatnonzero(time[1:] < time[:-1])[0]) + 1
                raise StreamdError(
                    f"{self._name} row {block.rows['offset'][at]} is earlier than the row before it.",
                    "sort the file by time.",
                )
            block = block.take(np.argsort(time, kind="stable"))
        at = 0
        while at < len(block):
            end = min(at + min(self._log.remaining_rows(), MAX_COMMIT_EVENTS), len(block))
            part = block.take(np.arange(at, end))
            keys = self._decoder.keys
            batch, watermark, refused = self._builder.build(
                part, keys.keys, keys.epoch, self._log.watermark, self._log.num_nodes
            )
            for r in refused:
                row = part.rows[r.row]
                raise StreamdError(
                    f"{self._name} row {row['offset']}{KINDS[int(row['kind'])]}: {r.error} ({r.reason}).",
                    REMEDY.get(r.reason, "correct it in the file."),
                )
            self._log.commit(batch, Progress(), watermark)
            self.num_events += end - at
            at = end


def _place_in_order(block: Block, watermark: int) -> None:
    """Give deletes and node features, which have no time, that of the rows before them."""
    rows = block.rows
    if len(rows) and not has_time(rows).all():
        so_far = np.maximum.accumulate(np.where(has_time(rows), rows["time"], watermark))
        rows["time"] = np.where(has_time(rows), rows["time"], so_far)

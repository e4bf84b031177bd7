"""Compares the events of topics with a log that has the history before them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from kafka import TopicPartition
from numpy.typing import NDArray

from streamd.decode.block import Block, Rows
from streamd.decode.decoder import Decoder
from streamd.decode.prepare import prepare
from streamd.eventlog.reader import LogReader
from streamd.events import EDGE, LABEL, Bools, Int64, Position, split_key
from streamd.exchange.warm_start.seam_records import Zone
from streamd.ingest.event_log import Log
from streamd.ingest.order.runs import offset_item, runs_of


@dataclass
class Seam:
    """The comparison of one partition, up to the records that were read. Owner: the import.

    rows: of the events in the zone, by offset. is_known: whether the history has each, bool.
    num_gaps: events before the zone that the history lacks. num_overlaps: events after the zone
    that it has. num_late: events in the zone that it lacks, though they are older than its newest
    one. examples: of gaps, overlaps and late events in words, by the name of the count.
    """

    zone: Zone
    rows: list[Rows] = field(default_factory=list)
    is_known: list[Bools] = field(default_factory=list)
    num_gaps: int = 0
    num_overlaps: int = 0
    num_late: int = 0
    num_before: int = 0
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def num_in_history(self) -> int:
        """Number of events in the zone that the history has."""
        return sum(int(known.sum()) for known in self.is_known)

    @property
    def num_events(self) -> int:
        """Number of events in the zone."""
        return sum(map(len, self.rows))

    def position(self) -> Position:
        """The first event in the zone that the history lacks, with the later ones that it has as
        runs to skip; the end of the zone if it lacks none."""
        # No record may be in the zone.
        if not self.rows:
            return Position(self.zone.end)
        rows, known = np.concatenate(self.rows), np.concatenate(self.is_known)
        missing = np.flatnonzero(~known)
        if not len(missing):
            return Position(self.zone.end)
        at = int(missing[0])
        return Position(*offset_item(rows[at]), tuple(runs_of(rows[at:], known[at:])))


class SeamReader:
    """Finds events of topics in a log. Owner: the import.

    An edge is known if the log has one of its edge set with the same keys and time, a label if the
    log has one with the same key, time and target. Of several equal events as many are known as the
    log has. Features of nodes and deletes have no time, so they count as unknown: to read them
    twice does no harm.
    """

    def __init__(
        self,
        log: Log,
        reader: LogReader,
        decoder: Decoder,
        partitions: Sequence[TopicPartition],
        now_us: int,
    ) -> None:
        """reader: of the same log and commit. decoder: of the topics. partitions: by number.
        now_us: wall clock, microseconds."""
        self._partitions = list(partitions)
        self._log = log
        self._reader = reader
        self._decoder = decoder
        self._now_us = now_us
        self._used: Counter[Any] = Counter()
        """Events of the log that were found, by their name."""
        first = reader.first_edge
        has_edges = reader.num_edges > first
        self._oldest_us = int(reader.time_of(np.array([first]))[0]) if has_edges else 0
        self._newest_us = reader.watermark

    def compare(self, number: int, seam: Seam, records: Sequence[Any]) -> None:
        """Compare further records of a partition. number: of the partition. Raises:
        SchemaRegistryError."""
        if not records:
            return
        tp = seam.zone.partition
        source = _Partitions(self._partitions)
        prepare(self._decoder, source, {number: records}, self._now_us, lambda: None)
        events, _ = self._decoder.decode(records, number, self._now_us, tp.topic)
        if not len(events):
            return
        known = self._match(events)
        rows = events.rows
        offset, time = rows["offset"], rows["time"]
        has_time = np.isin(rows["kind"], (EDGE, LABEL))

        # Before the zone, the history must have all events that are not older than itself.
        before = has_time & (offset < seam.zone.first) & (time >= self._oldest_us)
        seam.num_before += int(before.sum())
        seam.num_gaps += self._note(seam, "gap", events, before & ~known)
        # After it, none.
        after = has_time & (offset >= seam.zone.end)
        seam.num_overlaps += self._note(seam, "overlap", events, after & known)
        # In the zone each event is compared.
        inside = (offset >= seam.zone.first) & (offset < seam.zone.end)
        late = inside & has_time & ~known & (time < self._newest_us)
        seam.num_late += self._note(seam, "late", events, late)
        seam.rows.append(rows[inside])
        seam.is_known.append(known[inside])

    def _note(self, seam: Seam, kind: str, events: Block, chosen: Bools) -> int:
        """Keep the first of some events as an example. Returns: their number."""
        # One example of each kind is enough.
        if chosen.any() and kind not in seam.examples:
            row = events.rows[int(np.flatnonzero(chosen)[0])]
            keys = [
                str(split_key(self._decoder.keys.keys[int(row[name])])[1])
                for name in ("a", "b")
                if row[name] >= 0
            ]
            time = np.datetime64(int(row["time"]), "us")
            seam.examples[kind] = (
                f"{' to '.join(keys)} at {time}Z, offset {int(row['offset'])} of {seam.zone.name}"
            )
        return int(chosen.sum())

    def _match(self, events: Block) -> Bools:
        """Whether the log has each event: bool of their number."""
        # Edges, by the node ids of their keys.
        rows = events.rows
        a, b = self._node_ids(rows["a"]), self._node_ids(rows["b"])
        count = np.zeros(len(rows), np.int64)
        edges = np.flatnonzero((rows["kind"] == EDGE) & (a >= 0) & (b >= 0))
        sets = self._log.schema.edge_sets_of(events.values[edges])
        time = np.ascontiguousarray(rows["time"])
        if len(edges):
            count[edges] = self._log.count_edges(a[edges], b[edges], time[edges], sets)
        names: dict[int, tuple[Any, ...]] = {
            row: (int(number), *map(int, (a[row], b[row], time[row])))
            for row, number in zip(edges.tolist(), sets, strict=True)
            if count[row]
        }
        # Labels, which are few.
        names |= self._labels(events, a, count)

        # Of equal events, only as many are known as the log has.
        known = np.zeros(len(rows), np.bool_)
        for row, name in sorted(names.items()):
            if self._used[name] < count[row]:
                self._used[name] += 1
                known[row] = True
        return known

    def _labels(self, events: Block, node: Int64, count: Int64) -> dict[int, tuple[Any, ...]]:
        """Names of the labels that the log has, by row; sets their `count`."""
        rows = events.rows
        labels = np.flatnonzero((rows["kind"] == LABEL) & (node >= 0))
        if not len(labels):
            return {}
        time = rows["time"][labels]
        near = self._reader.labels_between(int(time.min()) - 1, int(time.max()))
        held = Counter(
            (n, t, tuple(target))
            for n, t, target in zip(*(column.tolist() for column in near), strict=True)
        )
        found: dict[int, tuple[Any, ...]] = {}
        for row in labels.tolist():
            target = np.array(events.extras[rows["extra"][row]], np.float32).tolist()
            name = int(node[row]), int(rows["time"][row]), tuple(target)
            if held[name]:
                found[row] = name
                count[row] = held[name]
        return found

    def _node_ids(self, numbers: NDArray[np.int64]) -> Int64:
        """The log's node ids of key numbers, int64; -1 for an unknown key and for none."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        keys = self._decoder.keys.keys
        ids = [self._log.keys.get(keys[n], -1) if n >= 0 else -1 for n in distinct.tolist()]
        return np.array(ids, np.int64)[inverse]


@dataclass
class _Partitions:
    """Partitions by number, for a decoder; no older records are read."""

    partitions: list[TopicPartition]

    def records_before(self, source: int, offset: int) -> Sequence[Any]:
        return ()

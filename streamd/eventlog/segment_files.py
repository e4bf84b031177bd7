"""One segment as mapped columns: a TGUF file, or a folder with one for each edge set and the order
of all their events."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from streamd.errors import TGUFError
from streamd.eventlog.journal.journal import LogState, SegmentState
from streamd.eventlog.layout import LABELS, ORDER, ROW_BITS, SET_SHIFT
from streamd.eventlog.tguf.reader import TGUFFile, open_tguf
from streamd.eventlog.tguf.writer import columns_crc
from streamd.events import Float32, Int64
from streamd.schema import Schema

EDGE_COLUMNS = ("src", "dst", "time", "msg")
LABEL_COLUMNS = ("label_n_id", "label_time", "label_target")
NO_ORDER = np.zeros(0, np.int64)


class SegmentFiles:
    """The mapped files of a segment. Owner: the object that mapped them; only the mappings stay
    open.

    Rows count the events of the segment, in log order. per_set: the TGUF file of each edge set that
    the log had at the segment's start. order: int64, set and row in its file of each event, empty
    if there is one file. labels: the file with the labels.
    """

    def __init__(self, path: Path, state: SegmentState, schema: Schema) -> None:
        """path: of the segment or of a copy. Raises: TGUFError."""
        self.order: Int64 = NO_ORDER
        if not state.rows_per_set:
            self.per_set = [open_tguf(path, check_rows=False)]
            self.labels: TGUFFile | None = self.per_set[0]
            return
        names = schema.edge_set_names[: len(state.rows_per_set)]
        self.per_set = [open_tguf(path / f"{n}.tguf", check_rows=False) for n in names]
        has_labels = (path / LABELS).exists()
        self.labels = open_tguf(path / LABELS, check_rows=False) if has_labels else None
        try:
            self.order = np.memmap(path / ORDER, "<i8", "r")
        except (OSError, ValueError) as error:
            raise TGUFError(
                f"{path / ORDER} cannot be mapped: {error}.", "restore it from a backup."
            ) from None

    def places(self, rows: Int64) -> tuple[Int64, Int64]:
        """Edge set and row in its file of each row: int64 of the same shape."""
        if not len(self.order):
            return np.zeros(rows.shape, np.int64), rows
        code = self.order[rows]
        return code >> SET_SHIFT, code & ROW_BITS

    def _split(self, rows: Int64) -> Iterator[tuple[int, TGUFFile, NDArray[np.bool_], Int64]]:
        """Yield (edge set, file, mask of the rows in it, their rows there)."""
        sets, at = self.places(rows)
        for number, file in enumerate(self.per_set):
            inside = sets == number
            if inside.any():
                yield number, file, inside, at[inside]

    def gather(self, name: str, rows: Int64) -> Int64:
        """The column src, dst or time of rows: int64 of the same shape."""
        if not len(self.order):
            column: Int64 = self.per_set[0].column(name)[rows]
            return column
        out = np.zeros(rows.shape, np.int64)
        for _, file, inside, at in self._split(rows):
            out[inside] = file.column(name)[at]
        return out

    def edges(self, a: int, b: int) -> tuple[Int64, Int64, Int64]:
        """src, dst and time of the rows [a, b), int64[b - a] each; views if there is one file."""
        if not len(self.order):
            src, dst, time = (self.per_set[0].column(name, b)[a:] for name in EDGE_COLUMNS[:3])
            return src, dst, time
        src, dst, time = (np.empty(b - a, np.int64) for _ in range(3))
        set_E = self.edge_sets(a, b).astype(np.uint8)
        for number, file in enumerate(self.per_set):
            # The rows of a set are consecutive in its file: a slice that starts at the first.
            own = np.flatnonzero(set_E == number)
            if not len(own):
                continue
            first = int(self.order[a + own[0]]) & ROW_BITS
            for name, out in (("src", src), ("dst", dst), ("time", time)):
                out[own] = file.column(name, first + len(own))[first:]
        return src, dst, time

    def edge_sets(self, a: int, b: int) -> Int64:
        """Edge set of each of the rows [a, b): int64[b - a]."""
        if not len(self.order):
            return np.zeros(b - a, np.int64)
        numbers: Int64 = np.asarray(self.order[a:b]) >> SET_SHIFT
        return numbers

    def features(self, rows: Int64, schema: Schema) -> Float32:
        """Edge features of rows, as in a schema that may have grown since: float32[...,
        edge_feature_dim]."""
        if schema.num_edge_sets == 1 and self.per_set[0].header.msg_dim == schema.edge_feature_dim:
            features: Float32 = self.per_set[0].column("msg")[rows]
            return features
        out = np.zeros((*rows.shape, schema.edge_feature_dim), np.float32)
        for number, file, inside, at in self._split(rows):
            start = schema.edge_columns(number).start
            part = np.zeros((len(at), schema.edge_feature_dim), np.float32)
            part[:, start : start + file.header.msg_dim] = file.column("msg")[at]
            if schema.num_edge_sets > 1:
                part[:, number] = 1.0
            out[inside] = part
        return out

    def rows_before(
        self, time_T: Int64, state: SegmentState, side: Literal["left", "right"]
    ) -> Int64:
        """Number of rows before each time, or (side right) at or before it: int64[T]."""
        counts = state.rows_per_set or (state.num_edges,)
        out = np.zeros(len(time_T), np.int64)
        # Events of the segment and of each file are in order of time, so the counts add up.
        for file, count in zip(self.per_set, counts, strict=True):
            out += np.searchsorted(file.column("time", count), time_T, side=side)
        return out

    def newest_us(self, state: SegmentState) -> int:
        """Event time of the last edge of a segment that has one."""
        return int(self.edges(state.num_edges - 1, state.num_edges)[2][0])

    def label_columns(self, count: int) -> tuple[Int64, Int64, Float32]:
        """Node, time and target of the first `count` labels, which is not 0."""
        assert self.labels is not None
        node, time, target = (self.labels.column(name, count) for name in LABEL_COLUMNS)
        return node, time, target

    def schema(self, now: Schema) -> Schema:
        """The schema at the segment's start. now: the log's."""
        if not now.edge_sets:
            return replace(now, edge_feature_dim=self.per_set[0].header.msg_dim)
        sets = zip(now.edge_sets, self.per_set, strict=False)
        begun_with = [replace(one, feature_dim=file.header.msg_dim) for one, file in sets]
        return Schema.declared(now.node_sets, begun_with, now.label_dim)

    def rows_crc(self, rows: tuple[int, int], labels: tuple[int, int]) -> int:
        """CRC32C of the rows [a, b) and of label rows [c, d), as the writers compute it."""
        a, b = rows
        if not len(self.order):
            crc = columns_crc([self.per_set[0].column(name, b)[a:] for name in EDGE_COLUMNS])
        else:
            code = np.ascontiguousarray(self.order[a:b])
            crc = columns_crc([code])
            for number, file in enumerate(self.per_set):
                # Within a commit the rows of a set are consecutive.
                own = code[code >> SET_SHIFT == number] & ROW_BITS
                first, end = (int(own[0]), int(own[-1]) + 1) if len(own) else (0, 0)
                part = columns_crc([file.column(name, end)[first:] for name in EDGE_COLUMNS])
                crc = crc32c(part.to_bytes(4, "little"), crc)
        c, d = labels
        if self.labels is not None and d > c:
            crc = columns_crc([self.labels.column(n, d)[c:] for n in LABEL_COLUMNS], crc)
        return crc


def newest_time(data_dir: Path, state: LogState) -> int | None:
    """Event time of a log's newest edge, microseconds; None before there is one. Raises:
    TGUFError."""
    for segment in reversed(state.segments):
        if segment.num_edges:
            return SegmentFiles(data_dir / segment.path, segment, state.schema).newest_us(segment)
    return None

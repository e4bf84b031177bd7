"""The log's one writer: turns a batch into a commit, in the numbered steps of DESIGN section 2, and recovers."""

import fcntl
import os
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from crc32c import crc32c

from streamd.errors import DataDirectoryError, JournalError, LockedError
from streamd.events import EventBatch, Key, Progress, Schema
from streamd.segments.journal import (
    JournalWriter,
    LogState,
    SegmentState,
    changed_progress,
    encode_line,
    journal_files,
    read_lines,
)
from streamd.segments.nodekeys import decode_keys, encode_keys
from streamd.segments.tguf import TGUFSchema, TGUFWriter, write_all
from streamd.storage import sync_folder

log = structlog.get_logger()
KEYS = "nodes.keys"
FEATURES = "node_features/updates.rows"
LATE = "edges/default/late.rows"
MAX_COMMIT_ROWS = 65_536


def feature_row(dim: int) -> np.dtype[Any]:
    """A feature update on disk: commit, row in it, edges in the log before it, node, values."""
    return np.dtype([("seq", "<i8"), ("row", "<i8"), ("edge", "<i8"), ("node", "<i8"), ("values", "<f4", (dim,))])


LATE_ROW = np.dtype([("edge", "<i8"), ("time", "<i8")])


class LogWriter:
    """Owner: the ingest process, held by a lock on the directory. `keys` maps external keys to dense node ids."""

    def __init__(self, data_dir: Path, schema: Schema, segment_edges: int = 1_000_000) -> None:
        """Lock, recover and open the log. Raises: LockedError, JournalError, DataDirectoryError."""
        self.data_dir, self.schema, self.segment_edges = data_dir, schema, segment_edges
        for folder in ("journal", "edges/default", "node_features"):
            (data_dir / folder).mkdir(parents=True, exist_ok=True)
        self._lock = _lock(data_dir / "lock")
        state, path, size = recover(data_dir / "journal", schema)
        if state.schema != schema:
            raise JournalError(
                f"{data_dir} was written with {state.schema}, the settings say {schema}.",
                "set stream.edge_feature_dim, stream.node_feature_dim and stream.label_dim back, or use a new data_dir.")
        self.state = state
        self._segment: TGUFWriter | None = None
        self._segment_first = 0
        self._files: dict[str, int] = {}
        self._open_files()
        self._open_segment()
        self._journal = JournalWriter(data_dir / "journal", state, path, size)
        self._published = os.open(data_dir / "published", os.O_RDWR | os.O_CREAT, 0o640)
        self._publish()
        raw = (data_dir / KEYS).read_bytes()[: dict(state.files).get(KEYS, 0)]
        self.keys: dict[Key, int] = {k: i for i, k in enumerate(decode_keys(raw))}
        if len(self.keys) != state.num_nodes:
            raise DataDirectoryError(f"{KEYS} holds {len(self.keys)} keys, the journal counts {state.num_nodes}.",
                                     "restore nodes.keys from a backup.")

    @property
    def watermark(self) -> int:
        return self.state.watermark

    @property
    def num_edges(self) -> int:
        return self.state.num_edges

    @property
    def progress(self) -> Progress:
        return self.state.progress

    def room(self) -> int:
        """Rows the next commit may have, so that it does not span two segments."""
        segment = self._segment
        if segment is None or segment.num_edges >= segment.edge_capacity:
            return min(self.segment_edges, MAX_COMMIT_ROWS)
        room = segment.edge_capacity - segment.num_edges
        if self.schema.label_dim:
            room = min(room, max(segment.label_capacity - segment.num_labels, 0))
        return min(room, MAX_COMMIT_ROWS) or min(self.segment_edges, MAX_COMMIT_ROWS)

    def commit(self, batch: EventBatch, progress: Progress, watermark: int) -> None:
        """Append one batch durably. Any failure leaves the log at the commit before; the caller ends the process."""
        seq = self.state.seq + 1
        changes: list[dict[str, Any]] = []
        segment_state: SegmentState | None = None
        touched: list[int] = []
        if batch.num_edges or len(batch.label_node_L):
            segment = self._segment_for(batch)
            first = self._segment_first
            changes.append(_segment_change(segment, first, batch))
            # Step 1: write the rows.
            segment.append_edges(batch.src_E, batch.dst_E, batch.time_E, batch.msg_ED)
            segment.append_labels(batch.label_node_L, batch.label_time_L, batch.label_target_L)
            segment_state = SegmentState(first, segment.num_edges, segment.num_labels, segment.edge_capacity)
        for path, data in self._appends(seq, batch):
            at = dict(self.state.files).get(path, 0)
            write_all(self._files[path], data, at)
            changes.append({"path": path, "bytes": [at, at + len(data)], "crc": crc32c(data)})
            touched.append(self._files[path])
        # Step 2: make them durable.
        if segment_state is not None and self._segment is not None:
            self._segment.sync()
        for fd in touched:
            os.fdatasync(fd)
        # Step 3: the line; from here on the commit stands.
        line = {"seq": seq, "segment": None if segment_state is None else
                [segment_state.first_edge, segment_state.num_edges, segment_state.num_labels, segment_state.capacity],
                "rows": batch.num_rows, "nodes": self.state.num_nodes + len(batch.new_keys), "watermark": watermark,
                "files": changes, "progress": changed_progress(self.state.progress, progress)}
        self._journal.append(encode_line(line))
        self.state = self.state.after(line)
        # Step 4: show it to readers. Step 5, Kafka's offsets, is the caller's.
        self._publish()
        if segment_state is not None and self._segment is not None:
            self._segment.raise_counts()

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
        self._journal.close()
        for fd in (*self._files.values(), self._published, self._lock):
            os.close(fd)

    def _appends(self, seq: int, batch: EventBatch) -> list[tuple[str, bytes]]:
        out = []
        if batch.new_keys:
            out.append((KEYS, encode_keys(batch.new_keys)))
        if len(batch.node_F):
            rows = np.zeros(len(batch.node_F), feature_row(self.schema.node_feature_dim))
            rows["seq"], rows["row"], rows["node"] = seq, batch.node_row_F, batch.node_F
            rows["edge"], rows["values"] = batch.node_edge_F + self.state.num_edges, batch.node_values_F
            out.append((FEATURES, rows.tobytes()))
        if batch.late_edge:
            rows = np.zeros(len(batch.late_edge), LATE_ROW)
            rows["edge"] = np.array(batch.late_edge) + self.state.num_edges
            rows["time"] = batch.late_time
            out.append((LATE, rows.tobytes()))
        return out

    def _segment_for(self, batch: EventBatch) -> TGUFWriter:
        segment = self._segment
        if (segment is not None and segment.num_edges + batch.num_edges <= segment.edge_capacity
                and segment.num_labels + len(batch.label_node_L) <= segment.label_capacity):
            return segment
        first = self.state.num_edges
        path = self.data_dir / f"edges/default/{first:020d}.tguf"
        path.unlink(missing_ok=True)
        labels = self.segment_edges if self.schema.label_dim else 0
        new = TGUFWriter(path, TGUFSchema(self.segment_edges, self.schema.edge_feature_dim, labels,
                                          self.schema.label_dim))
        if segment is not None:
            segment.close()
            self._journal.roll(self.state)
            log.info("segment_sealed", first_edge=self._segment_first, edges=segment.num_edges)
        self._segment, self._segment_first = new, first
        return new

    def _open_files(self) -> None:
        sizes = dict(self.state.files)
        for name in (KEYS, FEATURES, LATE):
            fd = os.open(self.data_dir / name, os.O_RDWR | os.O_CREAT, 0o640)
            if os.fstat(fd).st_size < sizes.get(name, 0):
                raise DataDirectoryError(f"{name} is shorter than the journal says.", "restore it from a backup.")
            os.ftruncate(fd, sizes.get(name, 0))
            os.fsync(fd)
            self._files[name] = fd
            sync_folder((self.data_dir / name).parent)

    def _open_segment(self) -> None:
        for stray in (self.data_dir / "edges/default").glob("*.tguf"):
            if int(stray.stem) >= self.state.num_edges and not any(
                    s.first_edge == int(stray.stem) for s in self.state.segments):
                stray.unlink()
        if not self.state.segments:
            return
        last = self.state.segments[-1]
        self._segment_first = last.first_edge
        labels = last.capacity if self.schema.label_dim else 0
        self._segment = TGUFWriter.reopen(self.data_dir / last.path, last.num_edges, last.num_labels, last.capacity,
                                          labels)
        self._segment.clear_behind(MAX_COMMIT_ROWS)
        self._segment.raise_counts()

    def _publish(self) -> None:
        write_all(self._published, self.state.seq.to_bytes(8, "little"), 0)


def recover(folder: Path, schema: Schema) -> tuple[LogState, Path | None, int]:
    """The last good state, the journal file to go on with and its good bytes. A torn last line is dropped.

    Raises: JournalError where damage lies before the last line.
    """
    files = journal_files(folder)
    while files:
        path = files[-1]
        state: LogState | None = None
        good = 0
        lines = list(read_lines(path))
        for number, (at, fields) in enumerate(lines):
            if fields is None:
                if number != len(lines) - 1:
                    raise JournalError(f"{path} is damaged in line {number + 1}, before its last line.",
                                       "restore the data_dir from a backup; do not edit the journal.")
                log.warning("torn_line_dropped", file=path.name, line=number + 1)
                break
            state = LogState.restored(fields) if state is None else state.after(fields)
            good = at
        if state is not None:
            return state, path, good
        path.unlink()
        files.pop()
    return LogState(schema), None, 0


def _segment_change(segment: TGUFWriter, first: int, batch: EventBatch) -> dict[str, Any]:
    crc = 0
    for column in (batch.src_E, batch.dst_E, batch.time_E, batch.msg_ED, batch.label_node_L, batch.label_time_L,
                   batch.label_target_L):
        if column.size:
            crc = crc32c(np.ascontiguousarray(column).view(np.uint8).data, crc)
    return {"path": f"edges/default/{first:020d}.tguf",
            "rows": [segment.num_edges, segment.num_edges + batch.num_edges],
            "labels": [segment.num_labels, segment.num_labels + len(batch.label_node_L)], "crc": crc}


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 64, 0).decode(errors="replace").strip()
        os.close(fd)
        raise LockedError(f"{path.parent} is being written by process {owner}.",
                          "stop that process or set another data_dir.") from None
    os.ftruncate(fd, 0)
    write_all(fd, str(os.getpid()).encode(), 0)
    return fd



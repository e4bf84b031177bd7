"""Finds edges by their ends and event time, which is how a delete names them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamd.events import Int64
from streamd.segments.journal import NOTHING, LogState, SegmentState
from streamd.segments.layout import LATE, LATE_ROW
from streamd.segments.tguf import TGUFFile, open_tguf


def find_edges(
    segments: Sequence[tuple[SegmentState, TGUFFile]],
    late: NDArray[np.void],
    src: int,
    dst: int,
    time_us: int,
    before_event: int,
) -> Int64:
    """Find the edges below `before_event` that came with these ends and this time.

    late: `LATE_ROW` rows, the edges that the log stores at the watermark instead of the time they
    came with. Returns: their event ids, int64, ascending.
    """
    matches = [np.zeros(0, np.int64)]
    own_time = late["edge"][late["time"] == time_us]
    for segment, file in segments:
        first = segment.first_edge
        count = segment.num_edges
        time = file.column("time", count)
        if not count or first >= before_event:
            continue

        # Edges stored at this time, less late ones, and late ones that came with this time.
        rows = np.zeros(0, np.int64)
        if time[0] <= time_us <= time[-1]:
            rows = np.arange(
                np.searchsorted(time, time_us), np.searchsorted(time, time_us, side="right")
            )
            rows = rows[~np.isin(rows + first, late["edge"])]
        came_late = own_time[(own_time >= first) & (own_time < first + count)] - first
        rows = np.concatenate([rows, came_late])

        # Of those before the delete, the ones with both ends.
        rows = rows[rows + first < before_event]
        same = (file.column("src")[rows] == src) & (file.column("dst")[rows] == dst)
        matches.append(np.sort(rows[same]) + first)
    return np.concatenate(matches)


class EdgeLookup:
    """Finds edges in the committed part of a log. Owner: the log's writer, which has no reader."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._files: dict[tuple[int, int], TGUFFile] = {}
        self._segments: list[tuple[SegmentState, TGUFFile]] = []
        self._late = np.zeros(0, LATE_ROW)

    def refresh(self, state: LogState) -> None:
        """Take in what is committed as of `state`, reusing the files that are mapped already."""
        files = {}
        for s in state.segments:
            name = (s.first_edge, s.revision)
            files[name] = self._files.get(name) or open_tguf(
                self._data_dir / s.path, check_rows=False
            )
        self._files = files
        self._segments = [(s, files[s.first_edge, s.revision]) for s in state.segments]
        num_bytes = state.files.get(LATE, NOTHING).num_bytes
        if num_bytes != self._late.nbytes:
            with (self._data_dir / LATE).open("rb") as file:
                self._late = np.frombuffer(file.read(num_bytes), LATE_ROW)

    def find(self, src: int, dst: int, time_us: int, before_event: int) -> Int64:
        """Find edges by `find_edges`."""
        return find_edges(self._segments, self._late, src, dst, time_us, before_event)

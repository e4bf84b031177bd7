"""The keys of a log's nodes as Arrow arrays by node id."""

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamd.eventlog.journal.journal import NOTHING
from streamd.eventlog.key_search import find_keys
from streamd.eventlog.layout import KEYS
from streamd.eventlog.node_keys import (
    INTEGER,
    KIND,
    ROW_HEAD,
    STRING,
    KeySlice,
    key_slices,
)
from streamd.eventlog.reader import LogReader
from streamd.events import Int64, SetKey

MAX_DIGITS = 19
"""Characters of a number that surely fits an int64, and one."""


class NodeKeys:
    """Texts and integers of the keys by node id, null for deleted nodes; read from the file at the
    first use. An integer key is its decimals as text, and also in `integers`, where text keys are
    null: the keys 1 and "1" differ there. Owner: a snapshot of a log; it never changes.
    """

    def __init__(self, log: LogReader) -> None:
        """log: of the keys; it is not refreshed."""
        self._log = log

    def texts(self, nodes: Int64) -> Any:
        """The keys of nodes as text: an Arrow array of strings."""
        return self._arrays[0].take(pa.array(nodes)).cast(pa.string())

    def integers(self, nodes: Int64) -> Any:
        """The keys that are integers, null for others: an Arrow array of int64."""
        return self._arrays[1].take(pa.array(nodes))

    def node_of(self, text: str) -> int | None:
        """The id of a node with a key of any type and node set; None if no node has it."""
        state = self._log.state
        plain: list[str | int] = [text]
        if text.removeprefix("-").isdigit() and len(text) < MAX_DIGITS:
            plain.append(int(text))
        keys = [
            SetKey(number, key) if number else key
            for number in range(state.schema.num_node_sets)
            for key in plain
        ]
        rows = find_keys(self._log.data_dir, state.files.get(KEYS, NOTHING).num_bytes, keys)
        nodes = np.array([row.node for row in rows], np.int64)
        live = nodes[~self._log.deletions.is_gone(nodes)]
        return int(live[0]) if len(live) else None

    @cached_property
    def _arrays(self) -> tuple[Any, Any]:
        # A compaction may replace the file meanwhile, but no row of it moves.
        num_bytes = self._log.state.files.get(KEYS, NOTHING).num_bytes
        parts = [
            self._decode(one) for one in key_slices(self._log.data_dir / KEYS, lambda: num_bytes)
        ]
        texts, integers = zip(*parts, strict=True) if parts else ((), ())
        return (
            pa.chunked_array(texts, pa.large_string()).combine_chunks(),
            pa.chunked_array(integers, pa.int64()).combine_chunks(),
        )

    def _decode(self, rows: KeySlice) -> tuple[Any, Any]:
        """Texts and integers of a slice of the file."""
        data = np.frombuffer(rows.data, np.uint8)
        start_R = rows.start_R
        kind_R = data[start_R] & KIND
        length_R = np.diff(start_R, append=len(data)) - ROW_HEAD
        gone_R = self._log.deletions.is_gone(rows.first + np.arange(len(start_R)))
        is_text_R = (kind_R == STRING) & ~gone_R
        is_integer_R = (kind_R == INTEGER) & ~gone_R

        # Integers: eight bytes a row.
        integer_R = np.zeros(len(start_R), np.int64)
        body = start_R[is_integer_R, None] + ROW_HEAD + np.arange(8)
        integer_R[is_integer_R] = np.ascontiguousarray(data[body]).view("<i8")[:, 0]
        integers = pa.array(integer_R, mask=~is_integer_R)

        # Texts: the bytes of their rows, one after another, without the heads.
        text_length_R = np.where(is_text_R, length_R, 0)
        kept = np.repeat(is_text_R, length_R + ROW_HEAD)
        kept[start_R[:, None] + np.arange(ROW_HEAD)] = False
        offsets = np.concatenate([[0], np.cumsum(text_length_R)])
        valid = pa.array(is_text_R).buffers()[1]
        texts = pa.Array.from_buffers(
            pa.large_string(),
            len(start_R),
            [valid, pa.py_buffer(offsets), pa.py_buffer(data[kept])],
        )
        return pc.coalesce(texts, integers.cast(pa.large_string())), integers

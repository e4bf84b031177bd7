"""Reads named features of many tf.train.Example records as flat columns.

A kernel parses records in the usual form of writers. Any other record that the wire format allows
is parsed by protobuf, rewritten in that form, and then read by the kernel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import TFGNNError
from streamd.tfgnn.records.kernels import (
    BYTES,
    FLOAT,
    INT64,
    SLOW,
    fill_values,
    scan_examples,
)
from streamd.tfgnn.records.row_names import Location
from streamd.tfgnn.schema.messages import Example, parse_binary

KINDS = {"bytes": BYTES, "float": FLOAT, "int64": INT64}
NAMES = {number: f"{name}_list" for name, number in KINDS.items()}
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Column:
    """The values of a feature over R records.

    values: of all records, concatenated; int64, float32, or object for bytes. count_R: int64,
    number of values of each record.
    """

    values: Array
    count_R: Array


class ColumnReader:
    """Reads the columns of some features. Owner: the reader of the file.

    keys: (name, kind) of each feature; a kind is bytes, float or int64.
    """

    def __init__(self, keys: Sequence[tuple[str, str]]) -> None:
        names = [name.encode() for name, _ in keys]
        self.names = tuple(name for name, _ in keys)
        self._text = np.frombuffer(b"".join(names), np.uint8)
        self._name_K = np.cumsum([0, *map(len, names)], dtype=np.int64)
        self._kinds = [KINDS[kind] for _, kind in keys]
        self._want_K = np.array(self._kinds, np.uint8)

    def read(self, data: bytes, start_R: Array, end_R: Array, location: Location) -> list[Column]:
        """The columns of the records data[start_R:end_R], in the order of the keys.

        location: names a record by its number from 0. Raises: TFGNNError if a record is no Example,
        or has a list of another kind.
        """
        array = np.frombuffer(data, np.uint8)
        shape = (len(start_R), len(self._want_K))
        kind_RK = np.empty(shape, np.uint8)
        start_RK, end_RK, count_RK = (np.empty(shape, np.int64) for _ in range(3))
        state_R = np.empty(len(start_R), np.uint8)
        names = (self._text, self._name_K, self._want_K)
        found = (kind_RK, start_RK, end_RK, count_RK, state_R)
        # One pass of the kernel reads the records in the usual form.
        slow, wrong = scan_examples(array, start_R, end_R, *names, *found)
        if slow:
            # Append the rewritten records to the data.
            data, start_R, end_R = _rewritten(data, start_R, end_R, state_R == SLOW, location)
            array = np.frombuffer(data, np.uint8)
            slow, wrong = scan_examples(array, start_R, end_R, *names, *found)
            assert slow == 0, "protobuf writes records of another shape than the kernel reads"
        if wrong:
            raise self._wrong_kind(kind_RK, count_RK, location)
        return self._fill(data, array, start_RK, end_RK, count_RK)

    def _wrong_kind(self, kind_RK: Array, count_RK: Array, location: Location) -> TFGNNError:
        """The error for a list of another kind; an empty list may have any kind."""
        r, k = map(int, np.argwhere((count_RK > 0) & (kind_RK != self._want_K))[0])
        return TFGNNError(
            f"{location(r)}: {self.names[k]!r} is a {NAMES[int(kind_RK[r, k])]}, "
            f"its dtype needs a {NAMES[int(self._want_K[k])]}.",
            "correct the schema's dtype, or write the records again.",
        )

    def _fill(
        self,
        data: bytes,
        array: Array,
        start_RK: Array,
        end_RK: Array,
        count_RK: Array,
    ) -> list[Column]:
        """The columns of the lists that `scan_examples` has found."""
        # A single record, as in `Codec.decode`, needs no sum.
        totals = (count_RK[0] if len(count_RK) == 1 else count_RK.sum(axis=0)).tolist()
        kinds = self._kinds
        sizes = {INT64: 0, FLOAT: 0, BYTES: 0}
        for kind, total in zip(kinds, totals, strict=True):
            sizes[kind] += total
        # One array of each type for all columns, which are slices of it.
        ints = np.empty(sizes[INT64], np.int64)
        floats = np.empty(sizes[FLOAT], np.float32)
        text_start, text_end = np.empty((2, sizes[BYTES]), np.int64)
        fill_values(
            array,
            self._want_K,
            start_RK,
            end_RK,
            count_RK,
            ints,
            floats.view(np.uint8),
            text_start,
            text_end,
        )
        # The kernel writes numbers, but only the bounds of strings.
        texts = np.empty(sizes[BYTES], object)
        if len(texts):
            spans = zip(text_start.tolist(), text_end.tolist(), strict=True)
            texts[:] = [data[a:b] for a, b in spans]

        columns = []
        at = {INT64: 0, FLOAT: 0, BYTES: 0}
        all_values: dict[int, Array] = {INT64: ints, FLOAT: floats, BYTES: texts}
        for k, (kind, total) in enumerate(zip(kinds, totals, strict=True)):
            values = all_values[kind][at[kind] : at[kind] + total]
            columns.append(Column(values, count_RK[:, k]))
            at[kind] += total
        return columns


def rewrite(record: bytes, where: str) -> bytes:
    """Rewrite a record in the form that the kernel parses: packed lists, no unknown fields.

    Raises: TFGNNError if it is no Example.
    """
    message = parse_binary(Example, record, where)
    message.DiscardUnknownFields()
    return bytes(message.SerializeToString())


def _rewritten(
    data: bytes, start_R: Array, end_R: Array, slow_R: Array, location: Location
) -> tuple[bytes, Array, Array]:
    """The data with some records rewritten at its end, and the new start and end of all records.

    Raises: TFGNNError if a record is no Example.
    """
    start_R, end_R = start_R.copy(), end_R.copy()
    pieces, size = [data], len(data)
    for r in np.flatnonzero(slow_R).tolist():
        piece = rewrite(data[start_R[r] : end_R[r]], location(r))
        pieces.append(piece)
        start_R[r], end_R[r] = size, size + len(piece)
        size += len(piece)
    return b"".join(pieces), start_R, end_R

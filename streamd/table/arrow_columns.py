"""The columns of tables: their names, Arrow types and values."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamd.errors import StreamdError
from streamd.events import Float32
from streamd.schema import Feature
from streamd.settings.sets import FeatureSettings, nearest_of, other_text, text_of

TIME = pa.timestamp("us", "UTC")
"""Type of event times: the log's int64 microseconds as they are."""
FEATURES = "features"
"""Name of the column with all features of a row."""
PREFIX = "feature_"
"""Beginning of a feature's column if another column has its name."""


@dataclass(frozen=True)
class NamedFeature:
    """A declared feature as a column. start: its first number in a row of its set's features."""

    column: str
    start: int
    declared: FeatureSettings

    @property
    def type(self) -> Any:
        """The Arrow type of its values."""
        one = self.declared
        # Texts, and numbers of columns.
        if one.categories is not None:
            return pa.string()
        if one.hash is not None:
            return pa.int32()
        # One number, or a list of them.
        if one.type is not None:
            return pa.bool_() if one.type == "bool" else pa.float32()
        return pa.list_(pa.float32(), one.width)

    def decode(self, features_RD: Float32) -> Any:
        """The values of rows as an Arrow array. features_RD: float32[R, dim], the set's features.

        A category is its text, one of no category `other` (with as many `_` as make it none), and
        of a hash the number of its column; both are null if all of their numbers are 0.
        """
        one = self.declared
        part = features_RD[:, self.start : self.start + one.width]
        # One number, or a list of them.
        if one.type is not None:
            return array_over(part[:, 0] != 0 if one.type == "bool" else part[:, 0], self.type)
        if one.categories is None and one.hash is None:
            return fixed_lists(part)

        # One of several columns is 1, or none is.
        place_R = pa.array(part.argmax(1).astype(np.int32), mask=~part.any(1))
        if one.categories is None:
            return place_R
        return pa.array([*map(text_of, one.categories), other_text(one)]).take(place_R)


def named_features(features: Sequence[Feature], taken: Sequence[str]) -> tuple[NamedFeature, ...]:
    """The declared features of a set as columns.

    taken: names of other columns; a feature with one of them gets a PREFIX. SQL ignores case, and
    so does this.
    """
    known = {name.lower() for name in taken}
    out = []
    start = 0
    for feature in features:
        name = feature.name
        # A declared feature may have the prefixed name too.
        while name.lower() in known:
            name = PREFIX + name
        known.add(name.lower())
        declared = FeatureSettings.model_validate(json.loads(feature.declared))
        out.append(NamedFeature(name, start, declared))
        start += feature.width
    return tuple(out)


def array_over(values: NDArray[Any], of_type: Any) -> Any:
    """An Arrow array over the memory of a contiguous numpy array, which it keeps alive: of numbers
    of one width without a copy."""
    # Arrow has eight bools in a byte, numpy one.
    if values.dtype == np.bool_:
        return pa.array(values)
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(of_type, len(values), [None, pa.py_buffer(values)])


def fixed_lists(rows_RD: Float32) -> Any:
    """Rows of numbers as an Arrow array of lists, without a copy if they are contiguous."""
    flat = array_over(rows_RD.reshape(-1), pa.float32())
    lists = pa.list_(pa.float32(), rows_RD.shape[1])
    return pa.Array.from_buffers(lists, len(rows_RD), [None], children=[flat])


def pick(schema: Any, names: Sequence[str], table: str) -> Any:
    """The Arrow schema of some columns of a table, in this order. Raises: StreamdError for a name
    that it lacks."""
    for name in names:
        if name not in schema.names:
            raise StreamdError(
                f"{table} has no column {name!r}{nearest_of(name, schema.names)}.",
                "name one of them.",
            )
    return pa.schema([schema.field(name) for name in names])

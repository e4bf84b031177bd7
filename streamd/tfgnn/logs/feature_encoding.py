"""Encodes features of tables as the numbers of a log."""

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from streamd.decode.checks import FLOAT32_MAX
from streamd.decode.encoding import Feature
from streamd.decode.rounding import NOTHING, count_rounded
from streamd.errors import BadEvent, TFGNNError
from streamd.events import Float32
from streamd.settings.sets import FeatureSettings, nearest_of, text_of
from streamd.tfgnn.logs.declared import DeclaredSet, features_in_metadata, nothing_text
from streamd.tfgnn.records.row_names import Location
from streamd.tfgnn.records.tensor import Ragged, Value
from streamd.tfgnn.sampling.draws import Array
from streamd.tfgnn.schema import messages as peer
from streamd.tfgnn.schema.schema import dtype_of, shape_of, type_words
from streamd.tfgnn.tables.reading import WEIGHT, Rows

WEIGHTS = (WEIGHT, "weight")
"""Features of edges that are filled from a column of weights that the schema does not declare."""


class Encoder:
    """Encodes the features of a table's rows as the numbers of a declared set. Owner:
    `TableEvents`.

    left_out: columns, including weights, that the settings do not declare. rounded: counts of the
    rounded values so far.
    """

    def __init__(
        self,
        one: DeclaredSet,
        its: Any,
        kind: str,
        own: Collection[str],
    ) -> None:
        """one: the declared set. its: the set in the table's schema. own: columns that are no
        features. Raises: TFGNNError if a feature has no column, or a column of another type."""
        self.rounded = NOTHING
        location = f"{kind} {one.name!r}"
        given = features_in_metadata(its, location)
        # A log stores the hash or the n-grams of a text instead of the text, and so do tables that
        # were exported from a log.
        self._is_ours = {
            n for n, f in given.items() if n in one.features and _is_same(f, one.features[n])
        }
        stored = {n: _as_vector(one.features[n]) for n in self._is_ours if one.features[n].text}
        self._one = one = replace(one, features={**one.features, **stored})
        self._features = {n: Feature(n, f) for n, f in one.features.items()}
        self._types = its.features
        self.left_out = [n for n in sorted(its.features) if n not in one.features and n not in own]
        self._takes_weights = kind == "edge set" and any(n in one.features for n in WEIGHTS)
        # Each declared feature needs a column of a fitting type, or a value for missing ones.
        for name, declared in one.features.items():
            if name in its.features:
                is_hash = name in given and given[name].hash is not None
                if not takes(declared, its.features[name]) or (
                    is_hash and declared.type != "number" and name not in self._is_ours
                ):
                    raise TFGNNError(
                        f"{location}: feature {name!r} is {type_words(its.features[name])} in the "
                        f"schema, the settings declare {declared.words}.",
                        "correct one of them.",
                    )
            elif not (self._takes_weights and name in WEIGHTS) and declared.missing is None:
                raise TFGNNError(
                    f"{location}: the schema has no feature {name!r}, and no `missing` is declared"
                    f"{nearest_of(name, its.features)}.",
                    "add the column, or declare `missing`.",
                )

    def numbers(self, rows: Rows, location: Location) -> Float32:
        """The features of some rows, float32[R, width]. Raises: TFGNNError with the row."""
        if rows.weight is not None and not self._takes_weights and WEIGHT not in self.left_out:
            self.left_out.append(WEIGHT)
        parts = [np.empty((rows.num, 0), np.float32)]
        for name, declared in self._one.features.items():
            value: Value | None = rows.features.get(name)
            if name not in self._types:
                value = rows.weight if name in WEIGHTS else None
            if value is None and declared.missing is None:
                raise TFGNNError(f"{location(0)}: the table has no column {name!r}.", "add it.")
            parts.append(self._numbers(name, declared, value, rows.num, location))
        return np.concatenate(parts, axis=1)

    def _numbers(
        self,
        name: str,
        declared: FeatureSettings,
        value: Value | None,
        num: int,
        location: Location,
    ) -> Float32:
        """One feature of the rows, float32[R, its width]. Raises: TFGNNError."""
        assert not isinstance(value, Ragged), "no declared feature takes a ragged one"
        if value is None:
            return self._by_value(name, [None] * num, location)
        column = np.asarray(value).reshape(num, -1)
        if declared.vector is not None or (declared.type is not None and column.dtype != object):
            # NaN means a missing value, as in other imports of tables.
            if (
                column.dtype.kind == "f"
                and declared.vector is None
                and declared.missing is not None
            ):
                column = np.where(np.isnan(column), column.dtype.type(declared.missing), column)
            numbers = _as_float32(name, declared, column, location)
            self.rounded += count_rounded(column, [name] * declared.width)
            return numbers
        is_ours = name in self._is_ours and declared.type is None
        if declared.hash is not None and is_ours and column.dtype.kind == "i":
            return _one_hot(name, declared.hash, column[:, 0], location)
        plain: list[Any] = column[:, 0].tolist()
        if column.dtype == object:
            # An empty cell means a missing value, as in other imports of tables.
            nothing = nothing_text(declared) if is_ours else ""
            known = {text_of(c) for c in declared.categories or ()}
            texts = [_text(name, value, row, location) for row, value in enumerate(plain)]
            plain = [None if t == nothing and t not in known else t for t in texts]
        if not is_ours:
            return self._by_value(name, plain, location)
        # A table exported from a log has a text of its own for a value that is absent.
        out = np.zeros((num, declared.width), np.float32)
        there = [row for row, text in enumerate(plain) if text is not None]
        out[there] = self._by_value(name, [plain[row] for row in there], location)
        return out

    def _by_value(self, name: str, values: list[Any], location: Location) -> Float32:
        """Encode values as if they came in events. Raises: TFGNNError with the row."""
        feature = self._features[name]
        column = feature.column(values) if values else np.zeros((0, feature.width))
        if column is None:
            for row, value in enumerate(values):
                try:
                    feature.one(value, "")
                except BadEvent as error:
                    raise TFGNNError(f"{location(row)}: {error}.", "correct it.") from None
            raise AssertionError("a column is invalid only if one of its values is")
        return column.astype(np.float32)


def takes(declared: FeatureSettings, feature: peer.Feature) -> bool:
    """Whether a declared feature can be filled from a feature of a schema."""
    shape = shape_of(feature)
    if declared.vector is None:
        is_truth = dtype_of(feature).name == "DT_BOOL"
        return shape in ((), (1,)) and not (is_truth and declared.type == "number")
    if dtype_of(feature).wire == "bytes" or None in shape:
        return False
    return math.prod(size or 0 for size in shape) == declared.vector


def _is_same(a: FeatureSettings, b: FeatureSettings) -> bool:
    """Whether two declarations encode texts in the same columns; their `missing` may differ."""
    return (a.categories, a.hash, a.text) == (b.categories, b.hash, b.text)


def _as_vector(declared: FeatureSettings) -> FeatureSettings:
    """The declaration of a text feature as the vector that a log stores."""
    missing = None
    if declared.missing is not None:
        missing = Feature("", declared).one(declared.missing, "")
    return FeatureSettings(vector=declared.text, missing=missing)


def _as_float32(name: str, declared: FeatureSettings, column: Array, location: Location) -> Float32:
    """Convert to float32. Raises: TFGNNError with the first row whose value is not finite in
    float32, or for a bool not 0 or 1."""
    numbers = column.astype(np.float64)
    wrong = ~(np.abs(numbers) <= FLOAT32_MAX)
    if declared.type == "bool":
        wrong |= (numbers != 0) & (numbers != 1)
    if wrong.any():
        row = int(np.flatnonzero(wrong.any(1))[0])
        words = "0 or 1" if declared.type == "bool" else "a number of a log"
        raise TFGNNError(
            f"{location(row)}: feature {name!r} is {column[row].tolist()[:8]}, not {words}.",
            "correct it.",
        )
    return numbers.astype(np.float32)


def _one_hot(name: str, count: int, index_R: Array, location: Location) -> Float32:
    """One-hot rows of hash buckets; -1 gives a row of zeros. Raises: TFGNNError."""
    wrong = (index_R < -1) | (index_R >= count)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise TFGNNError(
            f"{location(row)}: feature {name!r} is {index_R[row]}, its indices are 0 to "
            f"{count - 1}, and -1.",
            "correct it.",
        )
    out = np.zeros((len(index_R), count), np.float32)
    rows = np.flatnonzero(index_R >= 0)
    out[rows, index_R[rows]] = 1
    return out


def _text(name: str, value: bytes, row: int, location: Location) -> str:
    """Decode a string. Raises: TFGNNError if it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise TFGNNError(
            f"{location(row)}: feature {name!r} is not UTF-8.", "correct it."
        ) from None

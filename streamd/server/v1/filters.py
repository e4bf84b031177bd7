"""Converts the filters and the diversity of requests, by the declared features of nodes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from fastapi import HTTPException

from streamd.decode.encoding import Feature
from streamd.decode.sources.paths import kind_of
from streamd.errors import BadEvent
from streamd.events import Key
from streamd.schema import Schema
from streamd.server.engine.set_names import PlainKey, in_set
from streamd.server.v1.request_parts import Diversity
from streamd.server.v1.schemas import RecommendRequest, SimilarRequest
from streamd.serving.node_filter import FeatureCondition, NodeFilter, ValueLimit
from streamd.settings.sets import (
    MAX_FLOAT32,
    FeatureSettings,
    declarations_of,
    nearest_of,
    text_of,
)

BOUNDS = ("gt", "gte", "lt", "lte")
"""Fields of a range of numbers."""

MAX_SHOWN = 64
"""Maximum number of characters of a value in an error."""


class _Column(NamedTuple):
    """A declared feature and its columns [first, end) in a row of node features."""

    feature: Feature
    declared: FeatureSettings
    first: int
    end: int


class Filters:
    """Converts filters by the declared node features. Owner: the server's state."""

    def __init__(self, schema: Schema, max_length: int) -> None:
        """max_length: maximum number of keys or values in one list of a request
        (server.max_candidates)."""
        self._max_length = max_length
        self._names = schema.node_set_names
        nodes, _ = declarations_of(schema)
        self._features: list[dict[str, _Column]] = []
        # A row has the features in the order of their declaration.
        for number, name in enumerate(self._names):
            at = schema.node_columns(number).start
            columns = {}
            for feature, one in (nodes[name].features if name in nodes else {}).items():
                columns[feature] = _Column(Feature(feature, one), one, at, at + one.width)
                at += one.width
            self._features.append(columns)

    def read(self, body: RecommendRequest | SimilarRequest, node_set: int) -> NodeFilter:
        """Convert the filter of a request. node_set: number of the set of the nodes in the answer.
        Raises: HTTPException."""
        only = None if body.only is None else self._keys("only", body.only, node_set)
        exclude = self._keys("exclude", body.exclude, node_set)
        conditions = [self._condition(n, v, node_set) for n, v in body.where.items()]
        return NodeFilter(kind=body.kind, only=only, exclude=exclude, where=tuple(conditions))

    def diversity(self, body: Diversity | None, node_set: int) -> ValueLimit | None:
        """Convert the diversity of a request, None if it has none. Raises: HTTPException."""
        # Without it any number of nodes may share a value.
        if body is None:
            return None
        column = self._column("diversity", body.feature, node_set)
        return ValueLimit(column.first, column.end, body.max_per_value)

    def _keys(self, name: str, keys: Sequence[PlainKey], node_set: int) -> tuple[Key, ...]:
        self._check_length(name, keys, "keys")
        return tuple(in_set(node_set, key) for key in keys)

    def _check_length(self, name: str, values: Sequence[Any], what: str) -> None:
        if len(values) > self._max_length:
            raise HTTPException(
                422,
                f"{name}: {len(values)} {what}, at most {self._max_length} (server.max_candidates)",
            )

    def _column(self, path: str, name: str, node_set: int) -> _Column:
        """The feature with a name. path: of the name in the request, for errors. Raises:
        HTTPException."""
        found = self._features[node_set].get(name)
        if found is None:
            known = nearest_of(name, self._features[node_set])
            raise HTTPException(
                422, f"{path}: node set {self._names[node_set]} has no feature {name!r}{known}"
            )
        # The log has no single value of a vector or a text.
        if found.declared.vector is not None:
            raise HTTPException(422, f"{path}: {name} is a vector, which has no single value")
        if found.declared.text is not None:
            raise HTTPException(
                422,
                f"{path}: {name} is a text, which the log stores as numbers only; declare "
                "categories to filter by it",
            )
        return found

    def _condition(self, name: str, value: Any, node_set: int) -> FeatureCondition:
        """Convert one field of `where`. Raises: HTTPException."""
        path = f"where.{name}"
        feature, declared, first, end = self._column("where", name, node_set)
        if declared.hash is not None:
            raise HTTPException(
                422,
                f"{path}: the log stores only a hash of it, which several texts may share; "
                "declare categories to filter by it",
            )
        if isinstance(value, dict):
            if declared.type != "number":
                raise HTTPException(422, f"{path}: a range is for numbers, not {declared.words}")
            low, high = _range(path, value)
            return FeatureCondition(first=first, end=end, low=low, high=high)

        # A single value is short for a list with one value.
        values = value if isinstance(value, list) else [value]
        self._check_length(path, values, "values")
        numbers = tuple(_number(path, feature, declared, one) for one in values)
        return FeatureCondition(first=first, end=end, values=numbers)


def _number(path: str, feature: Feature, declared: FeatureSettings, value: Any) -> float:
    """The number by which the log stores a value: the index of its category, or the value itself.
    Raises: HTTPException."""
    if value is None or isinstance(value, list | dict):
        raise HTTPException(422, f"{path}: {kind_of(value)} is no value of {declared.words}")
    try:
        numbers = feature.one(value, path)
    except BadEvent as error:
        raise HTTPException(422, f"{path}: {error}") from None
    if declared.categories is None:
        return _float32(path, numbers[0])

    # The last column is for all values that are not declared, so a filter cannot name one.
    number = numbers.index(1.0)
    if number == len(declared.categories):
        text = text_of(value)[:MAX_SHOWN]
        known = nearest_of(text, [text_of(c) for c in declared.categories])
        raise HTTPException(422, f"{path}: {text!r} is not a declared category{known}")
    return float(number)


def _range(path: str, bounds: Mapping[str, Any]) -> tuple[float, float]:
    """Convert a range to its lower and upper bound, both inclusive. Raises: HTTPException."""
    unknown = [name for name in bounds if name not in BOUNDS]
    if unknown or not bounds:
        what = f"has no {unknown[0]!r}" if unknown else "needs a bound"
        raise HTTPException(422, f"{path}: a range {what}; there are {', '.join(BOUNDS)}")

    # Combine the bounds in float32, the log's type.
    low, high = -np.inf, np.inf
    for name, value in bounds.items():
        if type(value) not in (int, float):
            raise HTTPException(422, f"{path}.{name}: {kind_of(value)}, not a number")
        number = np.float32(_float32(f"{path}.{name}", value))

        # An exclusive bound becomes the next float32.
        if name == "gt":
            number = np.nextafter(number, np.float32(np.inf))
        elif name == "lt":
            number = np.nextafter(number, np.float32(-np.inf))
        if name in ("gt", "gte"):
            low = max(low, float(number))
        else:
            high = min(high, float(number))
    return low, high


def _float32(path: str, number: float) -> float:
    """A number as float32, the log's type. Raises: HTTPException if it is too large or NaN."""
    # `not (x <= y)`: unlike `x > y`, it is also true for NaN.
    if not abs(number) <= MAX_FLOAT32:
        raise HTTPException(422, f"{path}: the number is out of range")
    return float(np.float32(number))

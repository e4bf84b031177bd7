"""The keys of a tf.train.Example for the parts of a GraphTensor."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from streamd.errors import TFGNNError
from streamd.tfgnn.schema.messages import Feature, GraphSchema
from streamd.tfgnn.schema.schema import (
    DataType,
    Shape,
    check_schema,
    dtype_of,
    ragged_dims,
    shape_of,
)


@dataclass(frozen=True, slots=True)
class FeatureKeys:
    """The keys of a feature: for its values, and for the row lengths of each ragged dim. shape: of
    one item's value."""

    name: str
    dtype: DataType
    shape: Shape
    values: str
    row_lengths: tuple[str, ...]


@dataclass(frozen=True)
class SetKeys:
    """The keys of a set. size, source, target: "" if the set has no such key. ends: node sets of an
    edge set's sources and targets."""

    kind: str
    name: str
    features: tuple[FeatureKeys, ...]
    size: str = ""
    source: str = ""
    target: str = ""
    ends: tuple[str, str] = ("", "")

    @cached_property
    def words(self) -> str:
        """Description of the set for errors."""
        return f"{self.kind} {self.name!r}" if self.name else self.kind


class FeatureLayout:
    """The keys of all sets of a schema. Immutable.

    prefix: of every key. Raises: TFGNNError if the schema is inconsistent, or if two of its parts
    would have the same key.
    """

    def __init__(self, schema: GraphSchema, prefix: str = "") -> None:
        check_schema(schema)
        self.context = _set_keys("context", "", f"{prefix}context/", schema.context)
        self.node_sets = tuple(
            _set_keys("node set", name, f"{prefix}nodes/{name}.", one)
            for name, one in sorted(schema.node_sets.items())
        )
        self.edge_sets = tuple(
            _set_keys("edge set", name, f"{prefix}edges/{name}.", one)
            for name, one in sorted(schema.edge_sets.items())
        )
        self.keys = tuple(_all_keys(self.all_sets))

        # A feature "a.d1" would have the key of the row lengths of a ragged feature "a".
        seen = set()
        for key, _ in self.keys:
            if key in seen:
                raise TFGNNError(
                    f"two parts of the schema have the key {key!r} in a record.",
                    "give one of them another name.",
                )
            seen.add(key)

    @property
    def all_sets(self) -> tuple[SetKeys, ...]:
        """The context, the node sets, the edge sets."""
        return self.context, *self.node_sets, *self.edge_sets


def _set_keys(kind: str, name: str, start: str, one: Any) -> SetKeys:
    """The keys of a set. start: prefix of each."""
    found = tuple(
        _feature_keys(feature_name, feature, f"{start}{feature_name}")
        for feature_name, feature in sorted(one.features.items())
    )
    if kind == "context":
        return SetKeys(kind, name, found)
    if kind == "node set":
        return SetKeys(kind, name, found, f"{start}#size")
    ends = (one.source, one.target)
    return SetKeys(kind, name, found, f"{start}#size", f"{start}#source", f"{start}#target", ends)


def _feature_keys(name: str, feature: Feature, key: str) -> FeatureKeys:
    """The keys of a feature. key: that of its values."""
    shape = shape_of(feature)
    row_lengths = tuple(f"{key}.d{dim}" for dim in ragged_dims(shape))
    return FeatureKeys(name, dtype_of(feature), shape, key, row_lengths)


def _all_keys(sets: tuple[SetKeys, ...]) -> list[tuple[str, str]]:
    """All keys, each with the kind of its list, in the order in which `Codec.decode` reads them."""
    keys = []
    for one in sets:
        keys += [(key, "int64") for key in (one.size, one.source, one.target) if key]
        for feature in one.features:
            keys.append((feature.values, feature.dtype.wire))
            keys += [(key, "int64") for key in feature.row_lengths]
    return keys

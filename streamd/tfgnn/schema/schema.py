"""GraphSchema: the node sets, edge sets and features of the graphs of a data set."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from streamd.errors import TFGNNError
from streamd.tfgnn.schema.messages import (
    EdgeSet,
    Feature,
    GraphSchema,
    parse_message,
    print_text,
)

MAX_DIMS = 32
"""Maximum number of dims of a feature, with that of the items: numpy's arrays have at most 64."""
RESERVED = {
    "node set": ("#size",),
    "edge set": ("#size", "#source", "#target"),
    "context": ("#size",),
}
"""Feature names that are reserved for a record's own keys."""
logger = structlog.get_logger()


@dataclass(frozen=True)
class DataType:
    """A type of values.

    number: in the schema's enum DataType. numpy: of decoded arrays; object for bytes, and float32
    for bfloat16, which numpy lacks. wire: kind of its list in a record.
    """

    name: str
    number: int
    numpy: "np.dtype[Any]"
    wire: str

    @property
    def bounds(self) -> tuple[int, int]:
        """Its smallest and largest integer; 0 and 1 for a bool."""
        if self.numpy == np.bool_:
            return 0, 1
        info = np.iinfo(self.numpy)
        return int(info.min), int(info.max)


DATA_TYPES = {
    number: DataType(name, number, np.dtype(numpy), wire)
    for name, number, numpy, wire in (
        ("DT_FLOAT", 1, "float32", "float"),
        ("DT_DOUBLE", 2, "float64", "float"),
        ("DT_INT32", 3, "int32", "int64"),
        ("DT_UINT8", 4, "uint8", "int64"),
        ("DT_INT16", 5, "int16", "int64"),
        ("DT_INT8", 6, "int8", "int64"),
        ("DT_STRING", 7, "object", "bytes"),
        ("DT_INT64", 9, "int64", "int64"),
        ("DT_BOOL", 10, "bool", "int64"),
        ("DT_BFLOAT16", 14, "float32", "float"),
        ("DT_UINT16", 17, "uint16", "int64"),
        ("DT_HALF", 19, "float16", "float"),
        ("DT_UINT32", 22, "uint32", "int64"),
        ("DT_UINT64", 23, "uint64", "int64"),
    )
}
"""Number -> type of a feature. Complex and quantized types have no encoding."""
TYPES = {t.name: t for t in DATA_TYPES.values()}
"""Name -> type of a feature."""


Shape = tuple[int | None, ...]
"""The shape of one item's value, None for a ragged dim."""
Features = Mapping[str, Feature]
REVERSED = ("edge_type", "reversed")
"""Key and value in the `extra` of an edge set if the sources and targets of its table are
swapped."""


def new_feature(dtype: str, shape: Sequence[int | None] = (), description: str = "") -> Feature:
    """A feature of a type, such as DT_FLOAT."""
    feature = Feature(dtype=dtype)
    for size in shape:
        feature.shape.dim.add(size=-1 if size is None else size)
    if description:
        feature.description = description
    return feature


def dtype_of(feature: Feature) -> DataType:
    """The data type of a feature's values."""
    return DATA_TYPES[feature.dtype]


def shape_of(feature: Feature) -> Shape:
    """The shape of one item's value."""
    return tuple(None if dim.size == -1 else dim.size for dim in feature.shape.dim)


def type_words(feature: Feature) -> str:
    """Description of a feature's type."""
    return f"{dtype_of(feature).name}{[dim.size for dim in feature.shape.dim] or ''}"


def ragged_dims(shape: Shape) -> tuple[int, ...]:
    """The ragged dims of a shape, 1 being the first after the dim of the items."""
    return tuple(i for i, size in enumerate(shape, 1) if size is None)


def extra_of(one: Any) -> dict[str, str]:
    """The `extra` of a set's metadata."""
    return {pair.key: pair.value for pair in one.metadata.extra}


def is_reversed(one: Any) -> bool:
    """Whether the sources and targets of an edge set's table are swapped."""
    return any((pair.key, pair.value) == REVERSED for pair in one.metadata.extra)


def has_table(one: Any) -> bool:
    """Whether the metadata of a set names a file or a query of BigQuery."""
    return bool(one.metadata.filename) or one.metadata.HasField("bigquery")


def all_sets(schema: GraphSchema) -> Iterator[tuple[str, str, Any]]:
    """Yield kind, name and set of the context, the node sets and the edge sets."""
    if schema.HasField("context"):
        yield "context", "", schema.context
    for name, node_set in sorted(schema.node_sets.items()):
        yield "node set", name, node_set
    for name, edge_set in sorted(schema.edge_sets.items()):
        yield "edge set", name, edge_set


def check_schema(schema: GraphSchema, where: str = "the schema") -> None:
    """Check that a schema is consistent. Raises: TFGNNError with set and feature."""
    for kind, name, one in all_sets(schema):
        location = f"{where}: {kind} {name!r}" if name else f"{where}: {kind}"
        for feature_name, feature in sorted(one.features.items()):
            _check_feature(kind, feature_name, feature, f"{location}, feature {feature_name!r}")
        if kind == "context":
            continue
        # A set may name features of the context.
        for reference in one.context:
            if reference not in schema.context.features:
                raise _schema_error(
                    f"{location} names the context feature {reference!r}, which is not there"
                )
        if isinstance(one, EdgeSet):
            for end, at in (("source", one.source), ("target", one.target)):
                if not at:
                    raise _schema_error(f"{location} has no {end}")
                if at not in schema.node_sets:
                    raise _schema_error(f"{location}: its {end} {at!r} is not a node set")


def _schema_error(what: str, action: str = "correct the schema.") -> TFGNNError:
    return TFGNNError(f"{what}.", action)


def _check_feature(kind: str, name: str, feature: Feature, location: str) -> None:
    """Refuse a feature that records cannot represent. Raises: TFGNNError."""
    if not feature.dtype:
        raise _schema_error(f"{location} has no dtype", "write its dtype, such as DT_FLOAT.")
    if feature.dtype not in DATA_TYPES:
        types = feature.DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_number
        raise _schema_error(
            f"{location} has the dtype {types[feature.dtype].name}, which records cannot hold"
        )
    if feature.shape.unknown_rank:
        raise _schema_error(
            f"{location} has an unknown rank", "write its dims, -1 for a ragged one."
        )
    if name in RESERVED[kind]:
        raise _schema_error(f"{location}: records use this name themselves")
    shape = shape_of(feature)
    if len(shape) >= MAX_DIMS:
        raise _schema_error(f"{location} has {len(shape)} dims, at most {MAX_DIMS - 1} are read")
    size = 1
    for dim in shape:
        if dim is not None and dim < 0:
            raise _schema_error(
                f"{location}: a dim has the size {dim}", "write -1 for a ragged dim."
            )
        # Count a dim of size 0 as 1, so that the others are still bounded.
        size *= max(dim or 1, 1)
    if size >= 2**31:
        raise _schema_error(f"{location}: the dims {shape} make {size} values an item")
    ragged = ragged_dims(shape)
    # A record would have no value from which to count the rows of the ragged dim.
    if ragged and 0 in shape[: ragged[-1]]:
        raise _schema_error(f"{location} has a dim of 0 before a ragged one, which hides its rows")
    if any(dim.name for dim in feature.shape.dim) and not feature.description:
        raise _schema_error(
            f"{location} names dims and has no description", "write its description."
        )


def read_schema(path: Path) -> GraphSchema:
    """Read a schema, text or binary, and check it.

    path: the file, or a folder with exactly one .pbtxt. Raises: TFGNNError, with line and column if
    the text cannot be parsed, or with set and feature.
    """
    path = schema_file(path)
    return parse_schema(_read(path), str(path))


def schema_file(path: Path) -> Path:
    """The file of a schema: `path`, or the only .pbtxt in it if it is a folder. Raises:
    TFGNNError."""
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.pbtxt"))
    if len(found) != 1:
        names = ", ".join(p.name for p in found[:5]) or "none"
        raise TFGNNError(
            f"{path} must hold exactly one .pbtxt; there are: {names}.", "name the file."
        )
    return found[0]


def _read(path: Path) -> bytes:
    """The bytes of a file. Raises: TFGNNError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise TFGNNError(f"{path} cannot be read: {error.strerror}.", "check the path.") from None


def parse_schema(data: bytes, where: str = "the schema") -> GraphSchema:
    """A schema from protobuf text or binary, checked. Raises: TFGNNError."""
    schema = parse_message(GraphSchema, data, where)
    check_schema(schema, where)
    for _, name, one in all_sets(schema):
        for feature_name, feature in sorted(one.features.items()):
            _note_unusual(feature_name, feature, f"{where}: {name}, {feature_name}")
    return schema


def _note_unusual(name: str, feature: Feature, location: str) -> None:
    """Warn about features that are allowed but rarely intended."""
    if name.startswith("#") and name not in ("#id", "#time", "#weight"):
        logger.warning(
            "tfgnn_feature_name_unusual", location=location, hint="# is for records' own names"
        )
    if shape_of(feature) == (1,):
        logger.warning("tfgnn_feature_shape_unusual", location=location, hint="a scalar has no dim")


def schema_text(schema: GraphSchema) -> str:
    """A schema as protobuf text. Raises: TFGNNError if it is inconsistent."""
    check_schema(schema)
    return print_text(schema)


def schema_binary(schema: GraphSchema) -> bytes:
    """A schema as protobuf binary; equal schemas give equal bytes. Raises: TFGNNError if it is
    inconsistent."""
    check_schema(schema)
    return bytes(schema.SerializeToString(deterministic=True))

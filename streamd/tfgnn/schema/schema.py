"""A GraphSchema: which node sets, edge sets and features the graphs of a data set have."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from streamd.errors import TFGNNError
from streamd.tfgnn.schema.proto import message_class, parse_message, print_text

MAX_DIMS = 32
"""Most dims of a feature, with that of the items: numpy's arrays have at most 64."""
RESERVED = {
    "node set": ("#size",),
    "edge set": ("#size", "#source", "#target"),
    "context": ("#size",),
}
"""Feature names that a record uses for itself."""
logger = structlog.get_logger()


@dataclass(frozen=True)
class DataType:
    """A type of values.

    number: in the schema's enum DataType. numpy: of decoded arrays; object holds bytes, and
    bfloat16, which numpy lacks, is float32. wire: the list of a record that holds it.
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
"""The types that a feature may have, by number. Complex and quantized ones have no encoding."""
TYPES = {t.name: t for t in DATA_TYPES.values()}
"""The same by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """The type of a feature.

    shape: of one item's value, None for a ragged dim. dim_names: "" for a dim without a name, ()
    where no dim has one.
    """

    dtype: DataType
    shape: tuple[int | None, ...] = ()
    description: str = ""
    source: str = ""
    dim_names: tuple[str, ...] = ()

    @property
    def ragged_dims(self) -> tuple[int, ...]:
        """The ragged dims; 1 is the first after that of the items."""
        return tuple(i for i, size in enumerate(self.shape, 1) if size is None)


Features = Mapping[str, Feature]


@dataclass(frozen=True, kw_only=True, slots=True)
class BigQuery:
    """Where a set lies in BigQuery: a table (project, dataset, table), or a query."""

    table_spec: tuple[str, str, str] | None = None
    sql: str | None = None
    read_method: str = "EXPORT"
    reshuffle: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """Where the table of a set lies, and how many rows it has."""

    filename: str = ""
    cardinality: int | None = None
    extra: tuple[tuple[str, str], ...] = ()
    bigquery: BigQuery | None = None

    @property
    def is_reversed(self) -> bool:
        """Whether the table's sources are the targets of the set."""
        return ("edge_type", "reversed") in self.extra


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """The features of a whole graph."""

    features: Features = field(default_factory=dict)
    metadata: Metadata | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSet:
    """A set of nodes of one kind. context: names of context features that belong to it."""

    features: Features = field(default_factory=dict)
    description: str = ""
    context: tuple[str, ...] = ()
    metadata: Metadata | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeSet:
    """A set of edges of one kind, each from a node of `source` to one of `target`."""

    source: str
    target: str
    features: Features = field(default_factory=dict)
    description: str = ""
    context: tuple[str, ...] = ()
    metadata: Metadata | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OriginInfo:
    """How the graphs were made. root_sets: sets whose first node is the root of a subgraph."""

    graph_type: str = "UNDEFINED"
    root_sets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphSchema:
    """What the graphs of a data set hold. `check` tells what contradicts itself."""

    context: Context | None = None
    node_sets: Mapping[str, NodeSet] = field(default_factory=dict)
    edge_sets: Mapping[str, EdgeSet] = field(default_factory=dict)
    info: OriginInfo | None = None

    def all_sets(self) -> Iterator[tuple[str, str, Context | NodeSet | EdgeSet]]:
        """Yield kind in words, name and set: the context, the node sets, the edge sets."""
        if self.context is not None:
            yield "context", "", self.context
        for name, node_set in self.node_sets.items():
            yield "node set", name, node_set
        for name, edge_set in self.edge_sets.items():
            yield "edge set", name, edge_set

    def check(self, where: str = "the schema") -> None:
        """Refuse what contradicts itself. Raises: TFGNNError naming set and feature."""
        context = self.context.features if self.context else {}
        for kind, name, one in self.all_sets():
            place = f"{where}: {kind} {name!r}" if name else f"{where}: {kind}"
            for feature_name, feature in one.features.items():
                _check_feature(kind, feature_name, feature, f"{place}, feature {feature_name!r}")
            if isinstance(one, Context):
                continue
            for reference in one.context:
                if reference not in context:
                    raise _refused(
                        f"{place} names the context feature {reference!r}, which is not there"
                    )
            if isinstance(one, EdgeSet):
                for end, at in (("source", one.source), ("target", one.target)):
                    if not at:
                        raise _refused(f"{place} has no {end}")
                    if at not in self.node_sets:
                        raise _refused(f"{place}: its {end} {at!r} is not a node set")


def _refused(what: str, action: str = "correct the schema.") -> TFGNNError:
    return TFGNNError(f"{what}.", action)


def _check_feature(kind: str, name: str, feature: Feature, place: str) -> None:
    """Refuse a feature that no record can hold. Raises: TFGNNError."""
    if name in RESERVED[kind]:
        raise _refused(f"{place}: records use this name themselves")
    if len(feature.shape) >= MAX_DIMS:
        raise _refused(f"{place} has {len(feature.shape)} dims, at most {MAX_DIMS - 1} are read")
    size = 1
    for dim in feature.shape:
        if dim is not None and dim < 0:
            raise _refused(f"{place}: a dim has the size {dim}", "write -1 for a ragged dim.")
        # A dim of size 0 makes all empty, whatever the others are.
        size *= max(dim or 1, 1)
    if size >= 2**31:
        raise _refused(f"{place}: the dims {feature.shape} make {size} values an item")
    if feature.ragged_dims and 0 in feature.shape[: feature.ragged_dims[-1]]:
        raise _refused(f"{place} has a dim of 0 before a ragged one, which hides its rows")
    if any(feature.dim_names) and not feature.description:
        raise _refused(f"{place} names dims and has no description", "write its description.")


def read_schema(path: Path) -> GraphSchema:
    """Read a schema, text or binary, and check it.

    path: the file, or a folder with exactly one .pbtxt. Raises: TFGNNError with line and column
    where the text cannot be read, or naming set and feature.
    """
    path = schema_file(path)
    return parse_schema(_read(path), str(path))


def schema_file(path: Path) -> Path:
    """The file of a schema: `path`, or the only .pbtxt in that folder. Raises: TFGNNError."""
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
    schema = _from_message(parse_message("GraphSchema", data, where), where)
    schema.check(where)
    for _, name, one in schema.all_sets():
        for feature_name, feature in one.features.items():
            _note_unusual(feature_name, feature, f"{where}: {name}, {feature_name}")
    return schema


def _note_unusual(name: str, feature: Feature, place: str) -> None:
    """Log what is allowed and seldom meant."""
    if name.startswith("#") and name not in ("#id", "#time", "#weight"):
        logger.warning(
            "tfgnn_feature_name_unusual", place=place, hint="# is for records' own names"
        )
    if feature.shape == (1,):
        logger.warning("tfgnn_feature_shape_unusual", place=place, hint="a scalar has no dim")


def schema_text(schema: GraphSchema) -> str:
    """A schema as protobuf text. Raises: TFGNNError where it contradicts itself."""
    return print_text(_to_message(schema))


def schema_binary(schema: GraphSchema) -> bytes:
    """A schema as protobuf binary, the same bytes each time. Raises: TFGNNError as above."""
    return bytes(_to_message(schema).SerializeToString(deterministic=True))


def _from_message(message: Any, where: str) -> GraphSchema:
    """A schema of its message. Raises: TFGNNError for a dtype or rank that nothing can hold."""

    def features(of: Any, place: str) -> dict[str, Feature]:
        return {
            name: _feature(of.features[name], f"{where}: {place}, feature {name!r}")
            for name in sorted(of.features)
        }

    context = None
    if message.HasField("context"):
        context = Context(
            features=features(message.context, "context"), metadata=_metadata(message.context)
        )
    node_sets = {
        name: NodeSet(
            features=features(one, f"node set {name!r}"),
            description=one.description,
            context=tuple(one.context),
            metadata=_metadata(one),
        )
        for name, one in sorted(message.node_sets.items())
    }
    edge_sets = {
        name: EdgeSet(
            source=one.source,
            target=one.target,
            features=features(one, f"edge set {name!r}"),
            description=one.description,
            context=tuple(one.context),
            metadata=_metadata(one),
        )
        for name, one in sorted(message.edge_sets.items())
    }
    info = None
    if message.HasField("info"):
        kinds = message.info.DESCRIPTOR.fields_by_name["graph_type"].enum_type
        info = OriginInfo(
            graph_type=kinds.values_by_number[message.info.graph_type].name,
            root_sets=tuple(message.info.root_set),
        )
    return GraphSchema(context=context, node_sets=node_sets, edge_sets=edge_sets, info=info)


def _feature(message: Any, place: str) -> Feature:
    """A feature of its message. Raises: TFGNNError."""
    if not message.dtype:
        raise _refused(f"{place} has no dtype", "write its dtype, such as DT_FLOAT.")
    if message.dtype not in DATA_TYPES:
        name = (
            message.DESCRIPTOR.fields_by_name["dtype"]
            .enum_type.values_by_number[message.dtype]
            .name
        )
        raise _refused(f"{place} has the dtype {name}, which records cannot hold")
    if message.shape.unknown_rank:
        raise _refused(f"{place} has an unknown rank", "write its dims, -1 for a ragged one.")
    names = tuple(dim.name for dim in message.shape.dim)
    return Feature(
        dtype=DATA_TYPES[message.dtype],
        shape=tuple(None if dim.size == -1 else dim.size for dim in message.shape.dim),
        description=message.description,
        source=message.source,
        dim_names=names if any(names) else (),
    )


def _metadata(one: Any) -> Metadata | None:
    """The metadata of a set's message, None where it has none."""
    if not one.HasField("metadata"):
        return None
    message = one.metadata
    bigquery = None
    if message.HasField("bigquery"):
        table = message.bigquery.table_spec
        methods = message.bigquery.DESCRIPTOR.fields_by_name["read_method"].enum_type
        source = message.bigquery.WhichOneof("source")
        bigquery = BigQuery(
            table_spec=(table.project, table.dataset, table.table)
            if source == "table_spec"
            else None,
            sql=message.bigquery.sql if source == "sql" else None,
            read_method=methods.values_by_number[message.bigquery.read_method].name,
            reshuffle=message.bigquery.reshuffle,
        )
    return Metadata(
        filename=message.filename,
        cardinality=message.cardinality if message.HasField("cardinality") else None,
        extra=tuple((pair.key, pair.value) for pair in message.extra),
        bigquery=bigquery,
    )


def _to_message(schema: GraphSchema) -> Any:
    """The message of a schema. Raises: TFGNNError where it contradicts itself."""
    schema.check()
    message = message_class("GraphSchema")()
    for kind, name, one in schema.all_sets():
        if kind == "context":
            target = message.context
            target.SetInParent()
        else:
            target = (message.node_sets if kind == "node set" else message.edge_sets)[name]
        for feature_name, feature in one.features.items():
            _put_feature(target.features[feature_name], feature)
        if one.metadata is not None:
            _put_metadata(target.metadata, one.metadata)
        if isinstance(one, Context):
            continue
        _put(target, description=one.description)
        target.context.extend(one.context)
        if isinstance(one, EdgeSet):
            _put(target, source=one.source, target=one.target)
    if schema.info is not None:
        message.info.SetInParent()
        kinds = message.info.DESCRIPTOR.fields_by_name["graph_type"].enum_type
        message.info.graph_type = kinds.values_by_name[schema.info.graph_type].number
        message.info.root_set.extend(schema.info.root_sets)
    return message


def _put(message: Any, **fields: Any) -> None:
    """Set fields of a message, but not to what they are without a value."""
    for name, value in fields.items():
        if value:
            setattr(message, name, value)


def _put_feature(message: Any, feature: Feature) -> None:
    """Fill the message of a feature."""
    message.dtype = feature.dtype.number
    _put(message, description=feature.description, source=feature.source)
    for i, size in enumerate(feature.shape):
        dim = message.shape.dim.add(size=-1 if size is None else size)
        if feature.dim_names:
            _put(dim, name=feature.dim_names[i])


def _put_metadata(message: Any, metadata: Metadata) -> None:
    """Fill the message of a set's metadata."""
    message.SetInParent()
    _put(message, filename=metadata.filename)
    if metadata.cardinality is not None:
        message.cardinality = metadata.cardinality
    for key, value in metadata.extra:
        message.extra.add(key=key, value=value)
    if metadata.bigquery is None:
        return
    query = metadata.bigquery
    target = message.bigquery
    target.SetInParent()
    if query.table_spec is not None:
        project, dataset, table = query.table_spec
        target.table_spec.SetInParent()
        _put(target.table_spec, project=project, dataset=dataset, table=table)
    if query.sql is not None:
        target.sql = query.sql
    methods = target.DESCRIPTOR.fields_by_name["read_method"].enum_type
    target.read_method = methods.values_by_name[query.read_method].number
    target.reshuffle = query.reshuffle

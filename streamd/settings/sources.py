"""The settings that say how topics which exist already become events.

`graph.node_sets` and `graph.edge_sets` declare features (`streamd.settings.sets`); `sources` says
where in a topic's records they are (docs/sources.md).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator
from pydantic import GetJsonSchemaHandler as Handler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from streamd.schema import Schema
from streamd.settings.sets import Misplaced, Part, SetSettings, as_tuple, nearest_of, shown

NO_NAME = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
"""What no step of a path holds: msgspec reads no fields with such names."""
ROOTS = ("$envelope", "$key", "$headers")
"""First steps of paths that lead out of the record's own data."""
REGISTRY_FORMATS = ("avro", "protobuf")
"""Formats whose schemas are in the schema registry."""
UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's usual word for a value that it was not sent."""
MAX_STEPS = 16
"""Most steps of a path: a deeper value is no field of an event."""
Scalar = str | int | float | bool | None


def steps_of(path: str) -> tuple[str, ...]:
    r"""The steps of a path such as `items.0.id`; `\.` is a dot inside a name.

    Raises: ValueError where a step is empty, or there are too many.
    """
    steps = tuple(s.replace("\\.", ".") for s in re.split(r"(?<!\\)\.", path))
    if not all(steps) or len(steps) > MAX_STEPS:
        raise ValueError(f"a path is 1 to {MAX_STEPS} names with dots between them")
    if any(map(NO_NAME.search, steps)):
        raise ValueError("a name in a path holds no quotation mark, backslash or control character")
    if steps[0].startswith("$") and steps[0] not in ROOTS:
        raise ValueError(f"a path begins with a field's name or one of {', '.join(ROOTS)}")
    if steps[0] in ("$envelope", "$headers") and len(steps) == 1:
        raise ValueError(f"{steps[0]} needs a name behind it")
    if steps[0] == "$headers" and len(steps) > 2:
        raise ValueError("a header is text, nothing is inside it")
    return steps


KeyType = Literal["text", "integer"]


class FieldSettings(Part):
    """Where a field of an event is found in a record; a path alone stands for `{path: ...}`."""

    path: str | None = Field(None, description="names with dots: item.id, items.0.id, $key.id")
    constant: str | int | None = Field(None, description="the same value for all events")
    prefix: str = Field("", description="text put before a key")
    type: KeyType | None = Field(
        None, description="text or integer: what a key becomes; as it is where absent"
    )
    default: Scalar | list[float] = Field(None, description="the value taken where there is none")

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: Handler) -> JsonSchemaValue:
        """As `_from_path`, a path alone is enough."""
        whole = handler(core)
        return {"anyOf": [{"type": "string", "minLength": 1}, whole]}

    @model_validator(mode="after")
    def _has_one_origin(self) -> "FieldSettings":
        if (self.path is None) == (self.constant is None):
            raise ValueError("a field is a path, or {constant: ...}")
        if self.constant is not None and (self.prefix or self.default is not None or self.type):
            raise ValueError("a constant has neither prefix nor default, and no type")
        if self.path is not None:
            steps_of(self.path)
        return self


Fields = dict[str, FieldSettings]
Where = dict[
    str,
    Annotated[
        tuple[Scalar, ...],
        BeforeValidator(as_tuple, json_schema_input_type=Scalar | tuple[Scalar, ...]),
    ],
]


class EdgeFields(Part):
    """The fields of edges."""

    src: FieldSettings = Field(description="key of the source")
    dst: FieldSettings = Field(description="key of the destination")
    time: FieldSettings | None = Field(None, description="time of the event")
    features: Fields = Field({}, description="declared features by name")


class LabelFields(Part):
    """The fields of labels."""

    node: FieldSettings = Field(description="key of the node")
    time: FieldSettings | None = Field(None, description="time at which the label became known")
    target: Annotated[
        tuple[FieldSettings, ...],
        BeforeValidator(as_tuple, json_schema_input_type=FieldSettings | tuple[FieldSettings, ...]),
    ] = Field(min_length=1, description="numbers, or one list of them")


class NodeFields(Part):
    """The fields of node features."""

    id: FieldSettings = Field(description="key of the node")
    features: Fields = Field({}, description="declared features by name")


class DeleteFields(Part):
    """The fields of deletes: a node, or an edge's src, dst and time."""

    node: FieldSettings | None = Field(None, description="key of the node")
    src: FieldSettings | None = Field(None, description="key of the edge's source")
    dst: FieldSettings | None = Field(None, description="key of its destination")
    time: FieldSettings | None = Field(None, description="its time")

    @model_validator(mode="after")
    def _names_one_thing(self) -> "DeleteFields":
        of_edge = [self.src, self.dst, self.time]
        if self.node is not None and any(of_edge):
            raise ValueError("a delete has a node, or src, dst and time")
        if self.node is None and not all(of_edge):
            raise ValueError("a delete of an edge has src, dst and time")
        return self


class _Rule(Part):
    where: Where = Field({}, description="values of fields of which one must be met")

    @field_validator("where")
    @classmethod
    def _has_paths(cls, where: Where) -> Where:
        for path, values in where.items():
            try:
                steps_of(path)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
            if not values:
                raise ValueError(f"{path} has no values")
        return where


class LabelRule(_Rule):
    """Which records are labels."""

    node_set: str | None = Field(None, description="set of the nodes, where there are several")
    fields: LabelFields


class NodeRule(_Rule):
    """Which records are node features."""

    node_set: str | None = Field(None, description="set of the nodes, where there are several")
    fields: NodeFields


class DeleteRule(_Rule):
    """Which records are deletes."""

    node_set: str | None = Field(None, description="set of deleted nodes, where there are several")
    edge_set: str | None = Field(
        None, description="set of deleted edges; that of the source where absent"
    )
    fields: DeleteFields


TimeForm = Literal["days", "s", "ms", "us", "ns", "iso8601", "record"]


class SourceSettings(_Rule):
    """How the records of one topic become events. The first that holds of deletes, labels, nodes
    and the source's own fields makes the event; a record of which none holds is skipped."""

    topic: str = Field(min_length=1, description="the topic")
    format: Literal["json", "ndjson", "arrow", "avro", "protobuf", "json-schema"] = Field(
        "json", description="how values are encoded"
    )
    envelope: Literal["cloudevents", "debezium", "connect"] | None = Field(
        None, description="what is around the data"
    )
    edge_set: str | None = Field(None, description="set of the edges, where there are several")
    time: TimeForm | None = Field(
        None, description="how times are written; stream.time_unit where absent"
    )
    drop_keys: Annotated[
        tuple[str | int, ...],
        BeforeValidator(as_tuple, json_schema_input_type=str | int | tuple[str | int, ...]),
    ] = Field((), description="keys that are no nodes: events with one are dropped")
    unavailable_value: str = Field(
        UNAVAILABLE,
        min_length=1,
        description="Debezium's word for a value that it was not sent, which counts as absent",
    )
    fields: EdgeFields | None = Field(None, description="where the fields of edges are")
    deletes: DeleteRule | None = Field(None, description="which records are deletes")
    labels: LabelRule | None = Field(None, description="which records are labels")
    nodes: NodeRule | None = Field(None, description="which records are node features")

    @field_validator("unavailable_value")
    @classmethod
    def _is_a_word(cls, word: str) -> str:
        if word.startswith("hex:"):
            bytes.fromhex(word.removeprefix("hex:"))
        return word

    @model_validator(mode="after")
    def _makes_something(self) -> "SourceSettings":
        rules = {"deletes": self.deletes, "labels": self.labels, "nodes": self.nodes}
        made = [name for name, rule in rules.items() if rule is not None]
        if self.fields is None and not made:
            raise ValueError("a source needs fields: {src: ..., dst: ...}")
        if self.fields is None and self.where:
            raise ValueError("where belongs to fields, which are not there")

        # A rule without a condition takes all that is left.
        made += ["fields"] if self.fields is not None else []
        for name in made[:-1]:
            rule = rules[name]
            if rule is not None and not rule.where:
                raise ValueError(f"{name} has no where, so nothing is left for {made[-1]}")

        # The record's timestamp has no path, and other times need one.
        for name, field in self._timed():
            if self.time == "record" and field is not None:
                raise ValueError(f"time is record, so {name} needs no path of a time")
            if self.time != "record" and field is None:
                raise ValueError(f"{name} needs a time, or time: record")
        of_edge = self.deletes is not None and self.deletes.fields.time is not None
        if self.time == "record" and of_edge:
            raise ValueError("time is record, so deletes cannot tell which edge is meant")
        if self.envelope is None:
            for path in self.paths():
                if path.startswith("$envelope"):
                    raise ValueError(f"{path} needs an envelope")
        return self

    def _timed(self) -> Iterator[tuple[str, FieldSettings | None]]:
        if self.fields is not None:
            yield "fields", self.fields.time
        if self.labels is not None:
            yield "labels.fields", self.labels.fields.time

    def paths(self) -> Iterator[str]:
        """All paths that the source names."""
        for rule in (self, self.deletes, self.labels, self.nodes):
            if rule is None:
                continue
            yield from rule.where
            if rule.fields is not None:
                for _, field in fields_of(rule.fields):
                    if field.path is not None:
                        yield field.path

    def prefixes(self) -> set[str]:
        """The prefixes that the source puts before keys."""
        rules = (self, self.deletes, self.labels, self.nodes)
        return {
            field.prefix
            for rule in rules
            if rule is not None and rule.fields is not None
            for _, field in fields_of(rule.fields)
            if field.prefix
        }


def fields_of(part: BaseModel) -> Iterator[tuple[tuple[str | int, ...], FieldSettings]]:
    """Each field of an event that is declared, and its place below `part`."""
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, FieldSettings):
            yield (name,), value
        elif isinstance(value, Mapping):
            yield from (((name, key), field) for key, field in value.items())
        elif isinstance(value, tuple):
            yield from (((name, i), field) for i, field in enumerate(value))


def check_sources(
    sources: tuple[SourceSettings, ...],
    node_sets: Mapping[str, SetSettings],
    edge_sets: Mapping[str, SetSettings],
    schema: Schema,
) -> None:
    """Check sources against the declared sets and their features.

    schema: of the log under these declarations. Raises: Misplaced.
    """
    topics: set[str] = set()
    for i, source in enumerate(sources):
        here = ("sources", i)
        if source.topic in topics:
            raise Misplaced((*here, "topic"), "a topic has one source")
        topics.add(source.topic)
        if source.labels is not None and not schema.label_dim:
            raise Misplaced((*here, "labels"), "labels have no place while stream.label_dim is 0")

        # Each rule is of a declared set; edges and node features have that set's features.
        of_edges = source.deletes is not None and source.deletes.fields.node is None
        if source.edge_set is not None and source.fields is None and not of_edges:
            raise Misplaced((*here, "edge_set"), "the source makes no edges and deletes none")
        if source.fields is not None:
            name = _chosen(source.edge_set, edge_sets, (*here, "edge_set"))
            columns = schema.edge_columns(list(edge_sets).index(name))
            declared = _Declared(f"graph.edge_sets.{name}.features", edge_sets[name], columns)
            _check_fields(source.fields, (*here, "fields"))
            _check_features(source.fields.features, declared, (*here, "fields"))
        if source.nodes is not None:
            name = _chosen(source.nodes.node_set, node_sets, (*here, "nodes", "node_set"))
            columns = schema.node_columns(list(node_sets).index(name))
            declared = _Declared(f"graph.node_sets.{name}.features", node_sets[name], columns)
            of_nodes = (*here, "nodes", "fields")
            _check_fields(source.nodes.fields, of_nodes)
            _check_features(source.nodes.fields.features, declared, of_nodes)
        if source.labels is not None:
            _chosen(source.labels.node_set, node_sets, (*here, "labels", "node_set"))
            _check_fields(source.labels.fields, (*here, "labels", "fields"))
        if source.deletes is not None:
            _check_deletes(source, source.deletes, node_sets, edge_sets, (*here, "deletes"))


def _check_deletes(
    source: SourceSettings,
    rule: DeleteRule,
    node_sets: Mapping[str, SetSettings],
    edge_sets: Mapping[str, SetSettings],
    at: tuple[str | int, ...],
) -> None:
    """Check that deletes are of a declared set. Raises: Misplaced."""
    _check_fields(rule.fields, (*at, "fields"))
    if rule.fields.node is None:
        if rule.node_set is not None:
            raise Misplaced((*at, "node_set"), "they delete edges, which have an edge_set")
        _chosen(rule.edge_set or source.edge_set, edge_sets, (*at, "edge_set"))
    else:
        if rule.edge_set is not None:
            raise Misplaced((*at, "edge_set"), "they delete nodes, which have a node_set")
        _chosen(rule.node_set, node_sets, (*at, "node_set"))


def _chosen(name: str | None, sets: Mapping[str, SetSettings], at: tuple[str | int, ...]) -> str:
    """The set that a rule names, the only one where it names none. Raises: Misplaced."""
    if name is None and len(sets) > 1:
        raise Misplaced(at, f"it is not set, and there are several: {shown(list(sets))}")
    if name is not None and name not in sets:
        raise Misplaced(at, f"{name} is not in graph.{at[-1]}s{nearest_of(name, list(sets))}")
    return name or next(iter(sets))


class _Declared(NamedTuple):
    """A declared set. key: where its features are declared. columns: where they lie in rows."""

    key: str
    settings: SetSettings
    columns: slice


def _check_fields(fields: BaseModel, at: tuple[str | int, ...]) -> None:
    """Refuse what only keys have on other fields. Raises: Misplaced."""
    for place, field in fields_of(fields):
        is_key = place[0] in ("src", "dst", "node", "id")
        if field.prefix and not is_key:
            raise Misplaced((*at, *place), "only keys have a prefix")
        if field.type and not is_key:
            raise Misplaced((*at, *place), "only keys have a type")
        for word, value in (("default", field.default), ("constant", field.constant)):
            is_wrong = type(value) not in (str, int) or value == ""
            if is_key and value is not None and is_wrong:
                raise Misplaced((*at, *place, word), "a key is text or an integer, and not empty")
        if field.constant is not None and place[0] in ("time", "target"):
            raise Misplaced((*at, *place), f"{place[0]} cannot be a constant")


def _check_features(given: Fields, declared: _Declared, at: tuple[str | int, ...]) -> None:
    """Compare a source's features with the declared ones. Raises: Misplaced."""
    key, features = declared.key, declared.settings.features
    for name, field in given.items():
        if name not in features:
            near = nearest_of(name, features)
            raise Misplaced((*at, "features", name), f"{name} is not declared in {key}{near}")
        feature = features[name]
        for word, value in (("default", field.default), ("constant", field.constant)):
            if value is not None and not feature.takes(value):
                raise Misplaced((*at, "features", name), f"{word} is no value of {feature.words}")
    for name, feature in features.items():
        if name not in given and feature.missing is None:
            raise Misplaced(at, f"{name} of {key} has no path here, and no `missing` stands for it")
    width = declared.columns.stop - declared.columns.start
    if width and not features:
        kind = key.split(".")[1].removesuffix("_sets")
        raise Misplaced(at, f"{kind} features are {width} wide; declare them in {key}")

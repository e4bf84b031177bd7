"""The settings that say how topics which exist already become events.

`graph.node_sets` and `graph.edge_sets` declare features (`streamd.settings.sets`); `sources` says
where in a topic's records they are (docs/sources.md).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator
from pydantic import GetJsonSchemaHandler as Handler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from streamd.schema import Schema
from streamd.settings.sets import Misplaced, Part, SetSettings, as_tuple, nearest_of, shown

NO_NAME = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
"""What no step of a path holds: msgspec reads no fields with such names."""
KEY, HEADERS, ENVELOPE = "\\key", "\\headers", "\\envelope"
"""First steps of paths that lead out of the record's own data. No name of a field holds a
backslash, so a field `$key` is another step."""
ROOTS = {"$key": KEY, "$headers": HEADERS, "$envelope": ENVELOPE}
"""Those steps, as paths have them."""
REGISTRY_FORMATS = ("avro", "protobuf")
"""Formats whose schemas are in the schema registry."""
UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's usual word for a value that it was not sent."""
MAX_STEPS = 16
"""Most steps of a path: a deeper value is no field of an event."""
Scalar = str | int | float | bool | None


def steps_of(path: str) -> tuple[str, ...]:
    r"""The steps of a path such as `items.0.id`; `\.` is a dot and `\$` a dollar inside a name.

    The first step is one of `KEY`, `HEADERS` and `ENVELOPE` if the path leads out of the data.
    Raises: ValueError where a step is empty, or there are too many.
    """
    names = re.split(r"(?<!\\)\.", path)
    steps = tuple(name.replace("\\.", ".").replace("\\$", "$") for name in names)
    if not all(steps) or len(steps) > MAX_STEPS:
        raise ValueError(f"a path is 1 to {MAX_STEPS} names with dots between them")
    if any(map(NO_NAME.search, steps)):
        raise ValueError("a name in a path holds no quotation mark, backslash or control character")
    if not names[0].startswith("$"):
        return steps
    if names[0] not in ROOTS:
        raise ValueError(
            f"a path begins with a field's name or one of {', '.join(ROOTS)}; a field named "
            f"{names[0]} is written \\{names[0]}"
        )
    if names[0] != "$key" and len(steps) == 1:
        raise ValueError(f"{names[0]} needs a name after it")
    if names[0] == "$headers" and len(steps) > 2:
        raise ValueError("a header is text, nothing is inside it")
    return (ROOTS[names[0]], *steps[1:])


def is_outside(steps: Sequence[str]) -> bool:
    """Whether the steps of a path lead out of the record's own data."""
    return steps[0] in (KEY, HEADERS, ENVELOPE)


KeyType = Literal["text", "integer"]


class FieldSettings(Part):
    """Where a field of an event is found in a record; a path alone stands for `{path: ...}`."""

    path: Annotated[
        tuple[str, ...],
        BeforeValidator(as_tuple, json_schema_input_type=str | tuple[str, ...]),
    ] = Field(
        (),
        description="names with dots: item.id, items.0.id, $key.id; of several the first that has "
        "a value counts",
    )
    constant: str | int | None = Field(None, description="the same value for all events")
    prefix: str = Field("", description="text put before a key")
    type: KeyType | None = Field(
        None, description="text or integer: what a key becomes; as it is where absent"
    )
    default: Scalar | list[float] = Field(None, description="the value taken where there is none")

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str | list | tuple) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: Handler) -> JsonSchemaValue:
        """As `_from_path`, a path alone is enough, or a list of them."""
        whole = handler(core)
        path = {"type": "string", "minLength": 1}
        return {"anyOf": [path, {"type": "array", "items": path, "minItems": 1}, whole]}

    @model_validator(mode="after")
    def _has_one_origin(self) -> "FieldSettings":
        if bool(self.path) == (self.constant is not None):
            raise ValueError("a field is a path, or {constant: ...}")
        if self.constant is not None and (self.prefix or self.default is not None or self.type):
            raise ValueError("a constant has neither prefix nor default, and no type")
        for path in self.path:
            steps_of(path)
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
    if TYPE_CHECKING:
        fields: Any
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
    each: str | None = Field(
        None, description="path of a list: each of its elements is an event of its own"
    )
    also: bool = Field(
        False, description="take records that a source before it of the same topic took, too"
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
                if steps_of(path)[0] == ENVELOPE:
                    raise ValueError(f"{path} needs an envelope")
        if self.each is not None:
            self._check_each(self.each)
        return self

    def _check_each(self, each: str) -> None:
        """Check the path of a list of events. Raises: ValueError."""
        # Paths of the element alone are an easy slip: all would lead to nothing.
        steps = steps_of(each)
        if is_outside(steps):
            raise ValueError(f"each is a list in the data, and {each} leads out of it")
        of_fields = (steps_of(path) for path in list(self.paths())[1:])
        if not any(path[: len(steps)] == steps for path in of_fields):
            raise ValueError(
                f"no field leads into an element of {each}: a path such as {each}.id does"
            )

    def _timed(self) -> Iterator[tuple[str, FieldSettings | None]]:
        if self.fields is not None:
            yield "fields", self.fields.time
        if self.labels is not None:
            yield "labels.fields", self.labels.fields.time

    @property
    def rules(self) -> "list[_Rule]":
        """The rules that it has: of edges (its own), deletes, labels and node features."""
        rules = (self, self.deletes, self.labels, self.nodes)
        return [rule for rule in rules if rule is not None]

    @property
    def takes_all(self) -> bool:
        """Whether each record is an event of the source."""
        has_all = any(not rule.where for rule in self.rules if rule.fields is not None)
        return has_all and self.each is None

    def paths(self) -> Iterator[str]:
        """All paths that the source names."""
        if self.each is not None:
            yield self.each
        for rule in self.rules:
            yield from rule.where
            if rule.fields is not None:
                for _, field in fields_of(rule.fields):
                    yield from field.path

    def prefixes(self) -> set[str]:
        """The prefixes that the source puts before keys."""
        return {
            field.prefix
            for rule in self.rules
            if rule.fields is not None
            for _, field in fields_of(rule.fields)
            if field.prefix
        }


def by_topic(
    sources: Sequence[SourceSettings],
) -> dict[str, tuple[SourceSettings, ...]]:
    """The sources of each topic, in order."""
    topics = dict.fromkeys(source.topic for source in sources)
    return {topic: tuple(s for s in sources if s.topic == topic) for topic in topics}


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
    for i, source in enumerate(sources):
        here = ("sources", i)
        _check_topic(source, [one for one in sources[:i] if one.topic == source.topic], here)
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


def _check_topic(
    source: SourceSettings, before: Sequence[SourceSettings], at: tuple[str | int, ...]
) -> None:
    """Compare a source with those before it of the same topic. Raises: Misplaced."""
    for one in before:
        # These belong to the topic, not to one kind of its records.
        for name in ("format", "envelope", "unavailable_value"):
            if getattr(one, name) != getattr(source, name):
                what = f"it is {getattr(one, name) or 'none'} in a source before this one"
                raise Misplaced((*at, name), f"a topic has one {name}, and {what}")
        # Formats with times of their own write them again as one source reads them.
        timed = {one.time, source.time} - {"record"}
        if len(timed) > 1 and source.format not in ("json", "ndjson"):
            what = f"it is {one.time or 'stream.time_unit'} in a source before this one"
            raise Misplaced((*at, "time"), f"a topic of {source.format} has one form, and {what}")
        # An order of sources in which one never gets a record is a mistake.
        if one.takes_all and not source.also:
            raise Misplaced(
                at,
                "nothing is left for it, since a source before it has no where and takes all "
                "records; give that one a where, or this one also: true",
            )


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

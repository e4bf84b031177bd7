"""The settings that map the records of existing topics to events.

`graph.node_sets` and `graph.edge_sets` declare features (`streamd.settings.sets`); `sources` gives
the paths of their values in a topic's records (docs/sources.md).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator
from pydantic import GetJsonSchemaHandler as Handler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from streamd.settings.sets import Part, as_tuple

NO_NAME = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
"""Characters that a step of a path cannot contain: msgspec reads no fields with such names."""
KEY, HEADERS, ENVELOPE = "\\key", "\\headers", "\\envelope"
"""First steps of paths outside the record's data. No field name contains a backslash, so a field
that is called `$key` is another step."""
ROOTS = {"$key": KEY, "$headers": HEADERS, "$envelope": ENVELOPE}
"""These steps as they are written in paths."""
REGISTRY_FORMATS = ("avro", "protobuf")
"""Formats with schemas in the schema registry."""
UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's default placeholder for a value that the database did not send."""
MAX_STEPS = 16
"""Bound of a path's steps: event fields are not nested deeper."""
Scalar = str | int | float | bool | None


def steps_of(path: str) -> tuple[str, ...]:
    r"""The steps of a path such as `items.0.id`; `\.` is a dot and `\$` a dollar inside a name.

    The first step is `KEY`, `HEADERS` or `ENVELOPE` for a path outside the record's data.
    Raises: ValueError if a step is empty or has forbidden characters, or there are too many.
    """
    names = re.split(r"(?<!\\)\.", path)
    steps = tuple(name.replace("\\.", ".").replace("\\$", "$") for name in names)
    if not all(steps) or len(steps) > MAX_STEPS:
        raise ValueError(f"a path is 1 to {MAX_STEPS} names with dots between them")
    if any(map(NO_NAME.search, steps)):
        raise ValueError("a name in a path has no quotation mark, backslash or control character")
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
        raise ValueError("a header is text and has no fields")
    return (ROOTS[names[0]], *steps[1:])


def is_outside(steps: Sequence[str]) -> bool:
    """Whether a path leads outside the record's data."""
    return steps[0] in (KEY, HEADERS, ENVELOPE)


KeyType = Literal["text", "integer"]


class FieldSettings(Part):
    """The origin of an event's field: a path in the record, or a constant. A path alone is short
    for `{path: ...}`."""

    path: Annotated[
        tuple[str, ...],
        BeforeValidator(as_tuple, json_schema_input_type=str | tuple[str, ...]),
    ] = Field(
        (),
        description="field names with dots: item.id, items.0.id, $key.id; of several paths, "
        "the first with a value",
    )
    constant: str | int | None = Field(None, description="the same value for all events")
    prefix: str = Field("", description="text in front of a key")
    type: KeyType | None = Field(
        None, description="text or integer, to convert a key; if not set, it stays as it is"
    )
    default: Scalar | list[float] = Field(None, description="value for records without one")

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str | list | tuple) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: Handler) -> JsonSchemaValue:
        """As in `_from_path`, a path or a list of paths alone is enough."""
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
    where: Where = Field(
        {}, description="conditions: path of a field -> values, one of which the field must have"
    )

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
    """The rule for records that are labels."""

    node_set: str | None = Field(
        None, description="node set of the labels; required if there are several"
    )
    fields: LabelFields


class NodeRule(_Rule):
    """The rule for records that are node features."""

    node_set: str | None = Field(
        None, description="node set of the features; required if there are several"
    )
    fields: NodeFields


class DeleteRule(_Rule):
    """The rule for records that are deletes."""

    node_set: str | None = Field(
        None, description="node set of the deleted nodes; required if there are several"
    )
    edge_set: str | None = Field(
        None, description="edge set of the deleted edges; if not set, that of the source"
    )
    fields: DeleteFields


TimeForm = Literal["days", "s", "ms", "us", "ns", "iso8601", "record"]


class SourceSettings(_Rule):
    """How the records of one topic become events. The first rule with a matching `where` applies to
    a record, in the order deletes, labels, nodes, the source's own fields; a record that matches
    none is skipped."""

    topic: str = Field(min_length=1, description="the topic")
    format: Literal["json", "ndjson", "arrow", "avro", "protobuf", "json-schema"] = Field(
        "json", description="encoding of record values"
    )
    envelope: Literal["cloudevents", "debezium", "connect"] | None = Field(
        None, description="format of the envelope around the data"
    )
    each: str | None = Field(None, description="path of a list with one event in each element")
    also: bool = Field(
        False, description="also read records that an earlier source of the same topic has taken"
    )
    edge_set: str | None = Field(
        None, description="edge set of the events; required if there are several"
    )
    time: TimeForm | None = Field(None, description="format of times; if not set, stream.time_unit")
    drop_keys: Annotated[
        tuple[str | int, ...],
        BeforeValidator(as_tuple, json_schema_input_type=str | int | tuple[str | int, ...]),
    ] = Field((), description="keys that are not nodes: events with one of them are dropped")
    unavailable_value: str = Field(
        UNAVAILABLE,
        min_length=1,
        description="Debezium's placeholder for a value that the database did not send; it "
        "counts as absent",
    )
    fields: EdgeFields | None = Field(None, description="fields of edges")
    deletes: DeleteRule | None = Field(None, description="rule for deletes")
    labels: LabelRule | None = Field(None, description="rule for labels")
    nodes: NodeRule | None = Field(None, description="rule for node features")

    @field_validator("drop_keys", mode="before")
    @classmethod
    def _has_keys(cls, keys: Any) -> Any:
        if None in as_tuple(keys):
            raise ValueError(
                "null is no key: write default: anonymous at the field and drop_keys: [anonymous]"
            )
        return keys

    @field_validator("unavailable_value")
    @classmethod
    def _is_a_word(cls, word: str) -> str:
        if word.startswith("hex:"):
            bytes.fromhex(word.removeprefix("hex:"))
        return word

    @field_validator("each")
    @classmethod
    def _is_in_the_data(cls, each: str | None) -> str | None:
        if each is not None and is_outside(steps_of(each)):
            raise ValueError(f"each must be a path in the data, and {each} is outside it")
        return each

    @property
    def rules(self) -> "list[_Rule]":
        """Its rules: for edges (its own fields), deletes, labels and node features."""
        rules = (self, self.deletes, self.labels, self.nodes)
        return [rule for rule in rules if rule is not None]

    @property
    def takes_all(self) -> bool:
        """Whether every record becomes an event of this source."""
        has_all = any(not rule.where for rule in self.rules if rule.fields is not None)
        return has_all and self.each is None

    def paths(self) -> Iterator[str]:
        """All paths in the source."""
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
    """The declared fields of an event, each with its key below `part`."""
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, FieldSettings):
            yield (name,), value
        elif isinstance(value, Mapping):
            yield from (((name, key), field) for key, field in value.items())
        elif isinstance(value, tuple):
            yield from (((name, i), field) for i, field in enumerate(value))

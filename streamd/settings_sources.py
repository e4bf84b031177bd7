"""The settings that say how topics which exist already become events, and what features mean.

`graph.node_sets` and `graph.edge_sets` declare features; `sources` says where in a topic's records
they are (docs/sources.md).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

DEFAULT_SET = "default"
"""The one node set and the one edge set that there are."""
NO_NAME = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
"""What no step of a path holds: msgspec reads no fields with such names."""
ROOTS = ("$envelope", "$key", "$headers")
"""First steps of paths that lead out of the record's own data."""
REGISTRY_FORMATS = ("avro", "protobuf")
"""Formats whose schemas are in the schema registry."""
MAX_STEPS = 16
"""Most steps of a path: a deeper value is no field of an event."""
MAX_WIDTH = 65_536
"""Most numbers of one feature."""
MAX_FLOAT32 = (2 - 2**-23) * 2**127
"""Largest number of the log."""
Scalar = str | int | float | bool | None


class Part(BaseModel):
    """A part of a declaration: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _is_number(value: Any) -> bool:
    # No comparison holds for NaN.
    return type(value) in (int, float) and abs(value) <= MAX_FLOAT32


def _as_tuple(value: Any) -> Any:
    """A list as a tuple; one value stands for a list of it."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


class FeatureSettings(Part):
    """What a feature of a set is: how many numbers it takes, and what a missing value counts as.

    Exactly one of type, categories, hash and vector is given; `number` alone stands for a type.
    """

    type: Literal["number", "bool"] | None = Field(None, description="one number, or 0 and 1")
    categories: Annotated[tuple[str | int | bool, ...], BeforeValidator(_as_tuple)] | None = Field(
        None, min_length=1, max_length=MAX_WIDTH - 1, description="one place each, one for others"
    )
    hash: int | None = Field(
        None, gt=0, le=MAX_WIDTH, description="so many places, chosen by a hash of the text"
    )
    vector: int | None = Field(None, gt=0, le=MAX_WIDTH, description="a list of so many numbers")
    missing: Any = Field(
        None, description="the value taken where there is none; without it, that is a dead letter"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _is_one_kind(self) -> "FeatureSettings":
        given = [
            n for n in ("type", "categories", "hash", "vector") if getattr(self, n) is not None
        ]
        if len(given) != 1:
            raise ValueError("a feature is number, bool, categories: [...], hash: N or vector: N")
        if self.categories is not None:
            texts = [text_of(c) for c in self.categories]
            for text in texts:
                if texts.count(text) > 1:
                    raise ValueError(f"categories has {text!r} twice")

        # What stands for a missing value must itself be one.
        if self.missing is not None and not self.takes(self.missing):
            raise ValueError(f"missing is not a value of {self.words}")
        return self

    def takes(self, value: Any) -> bool:
        """Whether settings may say this value, for records that have none of their own."""
        if self.vector is not None:
            return (
                isinstance(value, list)
                and len(value) == self.vector
                and all(map(_is_number, value))
            )
        if self.type == "number":
            return _is_number(value)
        if self.type == "bool":
            return type(value) is bool or (type(value) is int and value in (0, 1))
        return type(value) in (str, bool) or (type(value) is int and abs(value) < 2**63)

    @property
    def width(self) -> int:
        """How many numbers the feature takes in an event."""
        if self.categories is not None:
            return len(self.categories) + 1
        return self.hash or self.vector or 1

    @property
    def words(self) -> str:
        """The kind in words, for errors."""
        if self.categories is not None:
            return "categories"
        if self.hash is not None:
            return f"hash: {self.hash}"
        return f"vector: {self.vector}" if self.vector else str(self.type)


class SetSettings(Part):
    """A set of nodes or edges: its features by name, in the order in which they lie in the log."""

    features: dict[str, FeatureSettings] = Field({}, description="features by name")

    @property
    def width(self) -> int:
        """The width of the set's features."""
        return sum(f.width for f in self.features.values())


def text_of(value: str | int | bool) -> str:
    """A category as text: 1 and "1" are one category, true is `true`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


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


class FieldSettings(Part):
    """Where a field of an event is found in a record; a path alone stands for `{path: ...}`."""

    path: str | None = Field(None, description="names with dots: item.id, items.0.id, $key.id")
    constant: str | int | None = Field(None, description="the same value for all events")
    prefix: str = Field("", description="text put before a key")
    default: Scalar | list[float] = Field(None, description="the value taken where there is none")

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_one_origin(self) -> "FieldSettings":
        if (self.path is None) == (self.constant is None):
            raise ValueError("a field is a path, or {constant: ...}")
        if self.constant is not None and (self.prefix or self.default is not None):
            raise ValueError("a constant has neither prefix nor default")
        if self.path is not None:
            steps_of(self.path)
        return self


Fields = dict[str, FieldSettings]
Where = dict[str, Annotated[tuple[Scalar, ...], BeforeValidator(_as_tuple)]]


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
    target: Annotated[tuple[FieldSettings, ...], BeforeValidator(_as_tuple)] = Field(
        min_length=1, description="numbers, or one list of them"
    )


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

    fields: LabelFields


class NodeRule(_Rule):
    """Which records are node features."""

    fields: NodeFields


class DeleteRule(_Rule):
    """Which records are deletes."""

    fields: DeleteFields


TimeForm = Literal["s", "ms", "us", "iso8601", "record"]


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
    time: TimeForm | None = Field(
        None, description="how times are written; stream.time_unit where absent"
    )
    fields: EdgeFields | None = Field(None, description="where the fields of edges are")
    deletes: DeleteRule | None = Field(None, description="which records are deletes")
    labels: LabelRule | None = Field(None, description="which records are labels")
    nodes: NodeRule | None = Field(None, description="which records are node features")

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


class Misplaced(ValueError):
    """When parts of the settings contradict one another. place: the key, step by step."""

    def __init__(self, place: tuple[str | int, ...], what: str) -> None:
        super().__init__(what)
        self.place = place


def check_sources(
    sources: tuple[SourceSettings, ...],
    edges: SetSettings,
    nodes: SetSettings,
    widths: tuple[int, int, int],
) -> None:
    """Check sources against the declared features.

    widths: of edge features, node features and labels, as the log has them.
    Raises: Misplaced.
    """
    topics: set[str] = set()
    for i, source in enumerate(sources):
        if source.topic in topics:
            raise Misplaced(("sources", i, "topic"), "a topic has one source")
        topics.add(source.topic)
        here = ("sources", i)
        if source.fields is not None:
            _check_fields(source.fields, (*here, "fields"))
            _check_features(source.fields.features, edges, "edge", widths[0], (*here, "fields"))
        if source.nodes is not None:
            of_nodes = (*here, "nodes", "fields")
            _check_fields(source.nodes.fields, of_nodes)
            _check_features(source.nodes.fields.features, nodes, "node", widths[1], of_nodes)
        for name, rule in (("labels", source.labels), ("deletes", source.deletes)):
            if rule is not None:
                _check_fields(rule.fields, ("sources", i, name, "fields"))
        if source.labels is not None and not widths[2]:
            raise Misplaced(
                ("sources", i, "labels"), "labels have no place while stream.label_dim is 0"
            )


def _check_fields(fields: BaseModel, at: tuple[str | int, ...]) -> None:
    """Refuse what only keys have on other fields. Raises: Misplaced."""
    for place, field in fields_of(fields):
        is_key = place[0] in ("src", "dst", "node", "id")
        if field.prefix and not is_key:
            raise Misplaced((*at, *place), "only keys have a prefix")
        for word, value in (("default", field.default), ("constant", field.constant)):
            is_wrong = type(value) not in (str, int) or value == ""
            if is_key and value is not None and is_wrong:
                raise Misplaced((*at, *place, word), "a key is text or an integer, and not empty")
        if field.constant is not None and place[0] in ("time", "target"):
            raise Misplaced((*at, *place), f"{place[0]} cannot be a constant")


def _check_features(
    given: Fields, declared: SetSettings, kind: str, width: int, at: tuple[str | int, ...]
) -> None:
    """Compare a source's features with the declared ones. Raises: Misplaced."""
    key = f"graph.{kind}_sets.{DEFAULT_SET}.features"
    for name, field in given.items():
        if name not in declared.features:
            raise Misplaced((*at, "features", name), f"{name} is not declared in {key}")
        feature = declared.features[name]
        for word, value in (("default", field.default), ("constant", field.constant)):
            if value is not None and not feature.takes(value):
                raise Misplaced((*at, "features", name), f"{word} is no value of {feature.words}")
    for name, feature in declared.features.items():
        if name not in given and feature.missing is None:
            raise Misplaced(at, f"{name} of {key} has no path here, and no `missing` stands for it")
    if width and not declared.features:
        raise Misplaced(at, f"{kind} features are {width} wide; declare them in {key}")

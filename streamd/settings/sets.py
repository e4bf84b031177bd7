"""The settings that declare node sets, edge sets, and their features by name."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic import GetJsonSchemaHandler as Handler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from streamd.schema import DEFAULT_SET, EdgeSet, Feature, NodeSet, Schema
from streamd.settings.nearest import nearest

SET_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
"""Names of sets, which are also names of folders."""
MAX_SETS = 60
"""Bound of sets of either kind: a key of the log stores its node set in six bits."""
MAX_NAMES = 10
"""Bound of the names that an error lists."""
MAX_WIDTH = 65_536
"""Bound of one feature's width."""
FORMS = "a feature is number, bool, categories: [...], hash: N, text: N or vector: N"
"""The forms of a declaration, for errors."""
MAX_FLOAT32 = (2 - 2**-23) * 2**127
"""Largest finite float32, the type of values in the log."""


class Part(BaseModel):
    """A part of a declaration: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _is_number(value: Any) -> bool:
    # No comparison holds for NaN.
    return type(value) in (int, float) and abs(value) <= MAX_FLOAT32


def as_tuple(value: Any) -> Any:
    """A list as a tuple; a single value becomes a tuple of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


class FeatureSettings(Part):
    """A feature of a set: its kind, which implies its width, and the value for missing ones.

    Exactly one of type, categories, hash, text and vector is given; the word `number` or `bool`
    alone is short for a type.
    """

    type: Literal["number", "bool"] | None = Field(None, description="one number, or 0 and 1")
    categories: (
        Annotated[
            tuple[str | int | bool, ...],
            BeforeValidator(
                as_tuple, json_schema_input_type=str | int | bool | tuple[str | int | bool, ...]
            ),
        ]
        | None
    ) = Field(
        None,
        min_length=1,
        max_length=MAX_WIDTH - 1,
        description="one column for each category, and one for all others",
    )
    hash: int | None = Field(
        None, gt=0, le=MAX_WIDTH, description="number of columns; a hash of the text chooses one"
    )
    text: int | None = Field(
        None,
        gt=0,
        le=MAX_WIDTH,
        description="number of columns, from the words and letters of a text",
    )
    vector: int | None = Field(None, gt=0, le=MAX_WIDTH, description="length of a list of numbers")
    missing: Any = Field(
        None, description="value for events without one; if not set, such an event is a dead letter"
    )

    @field_validator("type", mode="before")
    @classmethod
    def _is_a_type(cls, word: Any) -> Any:
        # The word may be meant as one of the other forms, such as category.
        if word not in ("number", "bool", None):
            raise ValueError(FORMS)
        return word

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: Handler) -> JsonSchemaValue:
        """As in `_from_word`, a word is short for a type."""
        whole = handler(core)
        return {"anyOf": [{"enum": ["number", "bool"]}, whole]}

    @model_validator(mode="after")
    def _is_one_kind(self) -> "FeatureSettings":
        kinds = ("type", "categories", "hash", "text", "vector")
        if sum(getattr(self, name) is not None for name in kinds) != 1:
            raise ValueError(FORMS)
        if self.categories is not None:
            texts = [text_of(c) for c in self.categories]
            for text in texts:
                if texts.count(text) > 1:
                    raise ValueError(f"categories has {text!r} twice")

        # The value for missing ones must be valid itself.
        if self.missing is not None and not self.takes(self.missing):
            raise ValueError(f"missing is not a value of {self.words}")
        return self

    def takes(self, value: Any) -> bool:
        """Whether a value in the settings, such as a default, is valid for this feature."""
        # A vector must have the declared length, a number must fit float32.
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
        """Numbers of the feature in a row."""
        if self.categories is not None:
            return len(self.categories) + 1
        return self.hash or self.text or self.vector or 1

    @property
    def words(self) -> str:
        """The kind as text, for errors."""
        if self.categories is not None:
            return "categories"
        if self.hash is not None:
            return f"hash: {self.hash}"
        if self.text is not None:
            return f"text: {self.text}"
        return f"vector: {self.vector}" if self.vector else str(self.type)


class SetSettings(Part):
    """A node set or edge set: its features by name, in the order of the log's columns."""

    features: dict[str, FeatureSettings] = Field({}, description="features by name")

    @property
    def width(self) -> int:
        """The width of the set's features."""
        return sum(f.width for f in self.features.values())


class EdgeSetSettings(SetSettings):
    """An edge set; with several node sets it names those of its endpoints."""

    source: str | None = Field(None, description="node set of the sources")
    target: str | None = Field(None, description="node set of the targets")


def text_of(value: str | int | bool) -> str:
    """A category as text: 1 and "1" are the same category, true is `true`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def other_text(declared: FeatureSettings) -> str:
    """The value for a text that is no category, in tables and samples."""
    return free_text("other", declared)


def free_text(word: str, declared: FeatureSettings) -> str:
    """The word, with as many _ appended as make it differ from all categories."""
    texts = {text_of(c) for c in declared.categories or ()}
    while word in texts:
        word += "_"
    return word


class Contradiction(NamedTuple):
    """A contradiction between settings.

    steps: the steps of the key. what: the contradiction, without the key. action: for the operator.
    """

    steps: tuple[str | int, ...]
    what: str
    action: str = ""


NodeSets = Mapping[str, SetSettings]
EdgeSets = Mapping[str, EdgeSetSettings]


def declared_schema(
    node_sets: NodeSets, edge_sets: EdgeSets, widths: tuple[int, int, int]
) -> Schema:
    """The schema of declared sets.

    Args: widths: of edge features, node features and labels; the first two apply to a set `default`
    without declared features.
    """
    nodes = node_sets or {DEFAULT_SET: SetSettings()}
    edges = edge_sets or {DEFAULT_SET: EdgeSetSettings()}
    of_edges = [_width(edges, name, widths[0]) for name in edges]
    of_nodes = [_width(nodes, name, widths[1]) for name in nodes]
    if list(nodes) == list(edges) == [DEFAULT_SET]:
        names = _features(edges[DEFAULT_SET]), _features(nodes[DEFAULT_SET])
        return Schema(of_edges[0], of_nodes[0], widths[2], (), (), *names)
    # An endpoint without a name is of the only node set.
    only = next(iter(nodes))
    ends = [(one.source or only, one.target or only) for one in edges.values()]
    return Schema.declared(
        [NodeSet(n, w, _features(nodes[n])) for n, w in zip(nodes, of_nodes, strict=True)],
        [
            EdgeSet(n, *of, w, _features(edges[n]))
            for n, of, w in zip(edges, ends, of_edges, strict=True)
        ],
        widths[2],
    )


def _features(one: SetSettings) -> tuple[Feature, ...]:
    return tuple(
        Feature(name, f.width, f.model_dump_json(exclude_none=True))
        for name, f in one.features.items()
    )


def declarations_of(schema: Schema) -> tuple[dict[str, SetSettings], dict[str, EdgeSetSettings]]:
    """The declarations of node sets and edge sets from which a log's schema was built."""
    nodes = {one.name: SetSettings(features=_features_of(one.features)) for one in schema.node_sets}
    edges = {
        one.name: EdgeSetSettings(
            source=one.source, target=one.target, features=_features_of(one.features)
        )
        for one in schema.edge_sets
    }
    if schema.node_features:
        nodes = {DEFAULT_SET: SetSettings(features=_features_of(schema.node_features))}
    if schema.edge_features:
        edges = {DEFAULT_SET: EdgeSetSettings(features=_features_of(schema.edge_features))}
    return nodes, edges


def _features_of(features: Sequence[Feature]) -> dict[str, FeatureSettings]:
    return {f.name: FeatureSettings.model_validate_json(f.declared) for f in features}


def _width(sets: Mapping[str, SetSettings], name: str, width: int) -> int:
    """The width of a set's features; the log's own width for a lone `default` set without
    declarations."""
    is_undeclared = list(sets) == [DEFAULT_SET] and not sets[name].features
    return width if is_undeclared else sets[name].width


def check_sets(node_sets: NodeSets, edge_sets: EdgeSets) -> Iterator[Contradiction]:
    """Check the names of sets, and that the endpoints of edge sets are node sets."""
    for key, sets in (("node_sets", node_sets), ("edge_sets", edge_sets)):
        for name in sets:
            if not SET_NAME.fullmatch(name):
                yield Contradiction(
                    ("graph", key, name),
                    "the name of a set is a letter and up to 62 letters, digits, _ and -",
                )
        if len(sets) > MAX_SETS:
            yield Contradiction(
                ("graph", key), f"{len(sets)} sets are declared, at most {MAX_SETS} are supported"
            )

    # Endpoints may be omitted if there is one node set.
    if len(node_sets) > 1 and not edge_sets:
        yield Contradiction(
            ("graph", "node_sets"),
            "several node sets need graph.edge_sets with a source and target each",
        )
    ends = list(node_sets) or [DEFAULT_SET]
    for name, one in edge_sets.items():
        for word, end in (("source", one.source), ("target", one.target)):
            if end is None and len(ends) > 1:
                yield Contradiction(
                    ("graph", "edge_sets", name),
                    f"it needs a {word}: one of {first_names(ends)}",
                )
            if end is not None and end not in ends:
                yield Contradiction(
                    ("graph", "edge_sets", name, word),
                    f"{end} is not in graph.node_sets{nearest_of(end, ends)}",
                )


def first_names(names: Sequence[str]) -> str:
    """Names for an error text, at most the first ten."""
    more = ", ..." if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def nearest_of(name: str, known: Collection[str], least: float = 0.5) -> str:
    """The end of an error about an unknown name: the known names, and the nearest.

    least: likeness that the nearest one must have, from 0 to 1.
    """
    there = f"; there are {first_names(list(known))}" if known else "; there are none"
    close = nearest(name, known, least)
    return f"{there}; did you mean '{close}'?" if close is not None else there

"""The sets of a log with their named features, and the equivalent GraphSchema.

A GraphSchema has no fields for the order of sets and features, categories, hash buckets and values
for missing ones. These are written to the `extra` of a set's metadata, from which `settings` reads
them.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from streamd.errors import TFGNNError
from streamd.schema import DEFAULT_SET, Schema
from streamd.settings.loading import Settings, edge_sets, node_sets, schema_of, with_schema
from streamd.settings.sets import (
    FeatureSettings,
    SetSettings,
    first_names,
    free_text,
    other_text,
    text_of,
)
from streamd.tfgnn.schema.messages import EdgeSet, Feature, GraphSchema, NodeSet
from streamd.tfgnn.schema.schema import (
    REVERSED,
    extra_of,
    is_reversed,
    new_feature,
)

ID, TIME = "#id", "#time"
"""Features of every node set and of every edge set: key, and event time in microseconds."""
NUMBER, FEATURES, WIDTH = "streamd.place", "streamd.features", "streamd.width"
"""Keys of a set's metadata: its number, its declared features as JSON in order, or the width of
unnamed features."""
UNIT, KEYS, REVERSE_OF = "streamd.time_unit", "streamd.keys", "streamd.reverse_of"
"""Keys of a set's metadata: the unit of `#time`, the form of ids (`node_keys`), and the edge set
that this one reverses."""
UNNAMED = "features"
"""Name of the one feature of a set with unnamed features: the vector of all its numbers."""
KEY = new_feature("DT_STRING", description="key of the node")
EVENT_TIME = new_feature("DT_INT64", description="event time, microseconds since 1970")
RESERVED_COLUMNS = {"node set": (ID, "#size"), "edge set": (TIME, "#size", "#source", "#target")}
"""Reserved names of columns of tables."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredSet:
    """A set of a log.

    number: its index. features: in the order of the log's columns; unnamed features are one
    feature, UNNAMED. is_named: False if they are unnamed because only `stream` declares their
    width. columns: of its features in a row of the log. source, target: node sets of an edge set.
    """

    name: str
    number: int
    features: Mapping[str, FeatureSettings]
    is_named: bool
    columns: slice
    source: str = ""
    target: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """The sets of a log by name, in order of their numbers. schema: of the log."""

    schema: Schema
    node_sets: Mapping[str, DeclaredSet]
    edge_sets: Mapping[str, DeclaredSet]


def declared_sets(settings: Settings, of_log: Schema | None = None) -> Declared:
    """The sets of a log, or those in the settings if there is no log.

    of_log: schema of the log, None if there is none. If it has no names, those of the settings are
    used if their widths equal the log's; else all features of a set are one vector.
    """
    # The log's own names come first, then those of the settings if the sets are the same, else
    # none.
    schema = schema_of(settings) if of_log is None else of_log
    if of_log is not None and of_log.is_declared:
        settings = with_schema(settings, of_log)
    nodes: Mapping[str, SetSettings] = node_sets(settings)
    edges: Mapping[str, SetSettings] = edge_sets(settings)
    if of_log is not None and _sets_of(schema_of(settings)) != _sets_of(of_log):
        nodes = {name: SetSettings() for name in of_log.node_set_names}
        edges = {name: SetSettings() for name in of_log.edge_set_names}
    names = schema.node_set_names
    found = {}
    for number, (name, edge_set) in enumerate(edges.items()):
        ends = schema.ends_of(number)
        columns = schema.edge_columns(number)
        found[name] = _set(
            name, number, edge_set, columns, len(edges) == 1, *(names[end] for end in ends)
        )
    return Declared(
        schema=schema,
        node_sets={
            name: _set(name, number, node_set, schema.node_columns(number), len(nodes) == 1)
            for number, (name, node_set) in enumerate(nodes.items())
        },
        edge_sets=found,
    )


def as_numbers(declared: Declared) -> Declared:
    """The same sets, with all features of each as one vector, whatever their declarations."""

    def of(sets: Mapping[str, DeclaredSet]) -> dict[str, DeclaredSet]:
        found = {}
        for name, one in sets.items():
            width = one.columns.stop - one.columns.start
            vector = {UNNAMED: FeatureSettings(vector=width)} if width else {}
            found[name] = replace(one, features=vector)
        return found

    return Declared(
        schema=declared.schema,
        node_sets=of(declared.node_sets),
        edge_sets=of(declared.edge_sets),
    )


def _sets_of(schema: Schema) -> tuple[Any, ...]:
    """Names, endpoints and columns of the sets of a schema."""
    ends = [schema.ends_of(n) for n in range(schema.num_edge_sets)]
    columns = str((schema.all_edge_columns, schema.all_node_columns))
    return schema.node_set_names, schema.edge_set_names, ends, columns


def _set(
    name: str,
    number: int,
    one: SetSettings,
    columns: slice,
    is_only: bool,
    source: str = "",
    target: str = "",
) -> DeclaredSet:
    """A set with its features; unnamed ones are one vector."""
    features = dict(one.features)
    width = columns.stop - columns.start
    has_no_names = bool(width) and not features
    if has_no_names:
        features = {UNNAMED: FeatureSettings(vector=width)}
    return DeclaredSet(
        name=name,
        number=number,
        features=features,
        # Only a lone `default` set may have a width from `stream` without a declaration.
        is_named=not (has_no_names and is_only and name == DEFAULT_SET),
        columns=columns,
        source=source,
        target=target,
    )


def feature_type(declared: FeatureSettings) -> Feature:
    """The type of a declared feature in tables and samples, with a description."""
    if declared.categories is not None:
        texts = [text_of(c) for c in declared.categories]
        other, nothing = other_text(declared), nothing_text(declared)
        words = f"one of {first_names(texts)}; {other!r} is any other, {nothing!r} none"
        return new_feature("DT_STRING", description=words)
    if declared.hash is not None:
        words = f"place of a text among {declared.hash}, by its CRC32C; -1 is none"
        return new_feature("DT_INT64", description=words)
    if declared.text is not None:
        words = "n-grams of a text, by their CRC32C"
        return new_feature("DT_FLOAT", (declared.text,), description=words)
    if declared.vector is not None:
        return new_feature("DT_FLOAT", (declared.vector,))
    return new_feature("DT_BOOL" if declared.type == "bool" else "DT_FLOAT")


def nothing_text(declared: FeatureSettings) -> str:
    """The value in tables for a missing text, such as that of a node without features."""
    is_free = "" not in {text_of(c) for c in declared.categories or ()}
    return "" if is_free else free_text("none", declared)


def reverse_names(declared: Declared) -> dict[str, str]:
    """Edge set -> name of its reverse."""
    found: dict[str, str] = {}
    for edge_set in declared.edge_sets:
        name = f"rev_{edge_set}"
        while name in declared.edge_sets or name in found.values():
            name = f"rev_{name}"
        found[edge_set] = name
    return found


def graph_schema(declared: Declared, reverse: Collection[str] = ()) -> GraphSchema:
    """The schema of a log's graph.

    reverse: names of edge sets to add a reverse of, since sampling follows edges from source to
    target only. Raises: TFGNNError if a feature has a reserved name.
    """
    out = GraphSchema()
    reversed_as = reverse_names(declared)
    for name, one in declared.edge_sets.items():
        features = {TIME: EVENT_TIME, **_features(one, "edge set")}
        ends = {"source": one.source, "target": one.target}
        _put_set(out.edge_sets[name], features, (*_metadata_of(one), (UNIT, "us")), **ends)
        if name in reverse:
            extra = (REVERSED, (REVERSE_OF, name), (UNIT, "us"))
            ends = {"source": one.target, "target": one.source}
            _put_set(out.edge_sets[reversed_as[name]], features, extra, **ends)
    for name, one in declared.node_sets.items():
        _put_set(out.node_sets[name], {ID: KEY, **_features(one, "node set")}, _metadata_of(one))
    return out


def _put_set(
    message: Any,
    features: Mapping[str, Feature],
    extra: Collection[tuple[str, str]],
    **ends: str,
) -> None:
    """Fill the message of a set. extra: pairs for its metadata. ends: source and target of an edge
    set."""
    message.MergeFrom(type(message)(features=features, **ends))
    message.metadata.SetInParent()
    for key, value in extra:
        message.metadata.extra.add(key=key, value=value)


def _features(one: DeclaredSet, kind: str) -> dict[str, Feature]:
    """The types of a set's features. Raises: TFGNNError."""
    for name in one.features:
        if name in RESERVED_COLUMNS[kind]:
            raise TFGNNError(
                f"The feature {name!r} of {kind} {one.name!r} has the name of a column of tables.",
                "rename it in the settings.",
            )
    return {name: feature_type(feature) for name, feature in one.features.items()}


def _metadata_of(one: DeclaredSet) -> tuple[tuple[str, str], ...]:
    """The properties of a set that a schema has no fields for, as pairs for its metadata."""
    notes = [(NUMBER, str(one.number))]
    if not one.is_named:
        return (*notes, (WIDTH, str(one.columns.stop - one.columns.start)))
    if one.features:
        plain = {name: plain_feature(feature) for name, feature in one.features.items()}
        notes.append((FEATURES, json.dumps(plain, ensure_ascii=False)))
    return tuple(notes)


def plain_feature(feature: FeatureSettings) -> Any:
    """A declaration in the form of the settings: a word, or a mapping."""
    fields = feature.model_dump(mode="json", exclude_defaults=True)
    return fields["type"] if list(fields) == ["type"] else fields


def metadata_value(one: NodeSet | EdgeSet, key: str) -> str | None:
    """A value of a set's metadata, None if it has none."""
    return extra_of(one).get(key)


def features_in_metadata(one: NodeSet | EdgeSet, location: str) -> dict[str, FeatureSettings]:
    """The declared features in a set's metadata. Raises: TFGNNError."""
    text = metadata_value(one, FEATURES)
    if text is None:
        return {}
    try:
        return {
            name: FeatureSettings.model_validate(value) for name, value in json.loads(text).items()
        }
    except (ValueError, AttributeError, RecursionError) as error:
        raise TFGNNError(
            f"{FEATURES} of {location} cannot be read: {str(error).splitlines()[0]}.",
            "correct it, or remove it from the metadata.",
        ) from None


def reversed_edge_set(name: str, schema: GraphSchema) -> str | None:
    """The edge set of which the edge set `name` is the reverse, None if there is none."""
    one = schema.edge_sets[name]
    if not is_reversed(one):
        return None
    forward_name, file = metadata_value(one, REVERSE_OF), one.metadata.filename
    other: str
    # The metadata names the reversed edge set; in other schemas, both have the same file.
    for other, forward in sorted(schema.edge_sets.items()):
        if (forward.source, forward.target) != (one.target, one.source) or is_reversed(forward):
            continue
        if other == forward_name or (
            forward_name is None and file and file == forward.metadata.filename
        ):
            return other
    return None

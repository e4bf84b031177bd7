"""Writes the settings of a new stream from a GraphSchema: its sets with their features, as YAML.

A schema of `streamd tfgnn schema` gives the original declarations. From other schemas, features
that a log cannot store are left out, with a comment.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from streamd.errors import SettingsError, TFGNNError
from streamd.schema import DEFAULT_SET
from streamd.settings.loading import load_settings
from streamd.tfgnn.logs.declared import FEATURES, NUMBER, WIDTH, metadata_value, reversed_edge_set
from streamd.tfgnn.schema.messages import EdgeSet, Feature, GraphSchema
from streamd.tfgnn.schema.schema import dtype_of, new_feature, shape_of
from streamd.tfgnn.tables.header import table_columns
from streamd.tfgnn.tables.reading import WEIGHT, table_path

NUMBERS = ("float32", "float64", "float16", "int8", "int16", "int32", "int64")
"""Names of the numpy types that can be stored in a log, as float32."""
HEAD = """\
# Made from a GraphSchema: check the sets and features, then set kafka.bootstrap_servers and
# kafka.topics, or sources for a topic in a shape of its own.
"""


def settings_of_schema(schema: GraphSchema, base: Path | None = None) -> str:
    """The settings in YAML, with comments about features and sets that were left out.

    base: folder of the tables, to look in their headers for weights that the schema does not
    declare; None for no look. Raises: TFGNNError if the schema has no edge set for a log, or
    invalid names of sets.
    """
    left_out: list[str] = []
    edges = {}
    for name, one in sorted(schema.edge_sets.items()):
        twin = reversed_edge_set(name, schema)
        if twin is None:
            edges[name] = one if base is None else _with_weight(name, one, base, left_out)
        else:
            left_out.append(f"edge set {name}: {twin} from target to source, which needs no set")
    if not edges:
        raise TFGNNError(
            "The schema has no edge set.", "add one: a log holds events, which are edges."
        )
    if schema.context.features:
        left_out.append("context: a log has none")

    nodes = {
        name: _declaration(f"node set {name}", one, left_out)
        for name, one in _in_order(schema.node_sets)
    }
    graph: dict[str, Any] = {"node_sets": nodes}
    graph["edge_sets"] = {
        name: {
            "source": one.source,
            "target": one.target,
            **_declaration(f"edge set {name}", one, left_out),
        }
        for name, one in _in_order(edges)
    }
    stream: dict[str, Any] = {"time_unit": "us"}
    for kind, sets in (("node", schema.node_sets), ("edge", schema.edge_sets)):
        width = metadata_value(sets[DEFAULT_SET], WIDTH) if DEFAULT_SET in sets else ""
        if width:
            stream[f"{kind}_feature_dim"] = int(width)
    settings = {"graph": graph, "stream": stream}

    # Check that the daemon accepts these settings.
    try:
        load_settings(None, _flat(settings), environ={})
    except SettingsError as error:
        raise TFGNNError(
            f"The schema cannot be used for a log: {error}", "rename or remove that set or feature."
        ) from None
    # A name with a line end must not end the comment.
    plain = ("".join(c if c.isprintable() else " " for c in text) for text in left_out)
    comments = "".join(f"# left out: {text}\n" for text in plain)
    return HEAD + comments + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


def _with_weight(name: str, one: EdgeSet, base: Path, left_out: list[str]) -> EdgeSet:
    """The edge set, with a feature for weights if only its table has them."""
    try:
        path = table_path(one, base)
        columns = [] if path is None else table_columns(path)
    except TFGNNError as error:
        left_out.append(f"the weights of edge set {name}, if it has some: {error}")
        return one
    if not any(c in columns and c not in one.features for c in (WEIGHT, "weight")):
        return one
    # An import fills a feature `#weight` or `weight` from a column with either name.
    feature = WEIGHT if "weight" in one.features else "weight"
    whole = EdgeSet()
    whole.CopyFrom(one)
    whole.features[feature].CopyFrom(new_feature("DT_FLOAT"))
    return whole


def _in_order(sets: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Sets by their number in the original log, if the schema has it; else by name."""
    numbers = {name: metadata_value(one, NUMBER) or "" for name, one in sets.items()}
    if all(number.isdigit() for number in numbers.values()):
        return sorted(sets.items(), key=lambda item: int(numbers[item[0]]))
    return sorted(sets.items())


def _declaration(where: str, one: Any, left_out: list[str]) -> dict[str, Any]:
    """The declaration of a set. Raises: TFGNNError if our metadata of the set is invalid."""
    if metadata_value(one, WIDTH):
        return {}
    if text := metadata_value(one, FEATURES):
        try:
            noted = json.loads(text)
        except ValueError:
            noted = None
        if not isinstance(noted, dict):
            raise TFGNNError(
                f"{FEATURES} of {where} is not a JSON object.", "remove it from the metadata."
            )
        return {"features": noted}
    features = {}
    for name, feature in sorted(one.features.items()):
        # Names with # are reserved columns of tables; only weights become a feature.
        if name.startswith("#") and name != WEIGHT:
            continue
        declared, why = _kind(feature)
        if declared is None:
            left_out.append(f"{where}, feature {name}: {why}")
        else:
            features[name] = declared
    return {"features": features} if features else {}


def _kind(feature: Feature) -> tuple[Any, str]:
    """The declaration of a feature, or None and the reason."""
    shape, dtype = shape_of(feature), dtype_of(feature)
    if dtype.name == "DT_STRING":
        return None, "a text; declare categories: [...], hash: N or text: N to keep it"
    if dtype.name == "DT_BOOL" and not shape:
        return "bool", ""
    if dtype.numpy.name not in (*NUMBERS, "bool"):
        return None, f"{dtype.name} is not a number of a log"
    if None in shape:
        return None, "a list of any length; a log holds vectors of one length"
    width = 1
    for length in shape:
        width *= length or 0
    if not width:
        return None, "it has no values"
    return ({"vector": width} if shape else "number"), ""


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted key, for a tree of two levels."""
    return {f"{a}.{b}": value for a, part in tree.items() for b, value in part.items()}

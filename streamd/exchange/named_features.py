"""Shows an event's features by the names that its set declares."""

from collections.abc import Sequence
from typing import Any

import msgspec

from streamd.settings.loading import Settings, edge_sets, node_sets
from streamd.settings.sets import FeatureSettings, other_text, text_of


def with_named_features(event: bytes, settings: Settings) -> str:
    """An event as JSON, with its list of features as a mapping by name.

    event: as from `as_json`. It is unchanged if its set declares no features.
    """
    row = msgspec.json.decode(event)
    values = row.get("features") or ()
    is_node = row.get("type") == "node"
    sets = node_sets(settings) if is_node else edge_sets(settings)
    # With one set, events do not name it.
    name = row.get("node_set" if is_node else "edge_set", next(iter(sets), ""))
    declared = sets[name].features if name in sets else {}
    # An array of another width cannot be assigned to names.
    if not declared or sum(one.width for one in declared.values()) != len(values):
        return event.decode()
    named, first = {}, 0
    for feature, one in declared.items():
        named[feature] = _value_of(one, values[first : first + one.width])
        first += one.width
    return msgspec.json.encode(row | {"features": named}).decode()


def _value_of(feature: FeatureSettings, columns: Sequence[float]) -> Any:
    """The value of a feature from its columns, as in the tables of events: `other` for a text that
    is no category, None if no column is 1."""
    if feature.categories is not None:
        texts = [*map(text_of, feature.categories), other_text(feature)]
        return texts[columns.index(1.0)] if 1.0 in columns else None
    if feature.type == "bool":
        return bool(columns[0])
    # The log has float32, in which seven digits are exact.
    numbers = [float(f"{value:.7g}") for value in columns]
    whole = [int(value) if value.is_integer() else value for value in numbers]
    return whole[0] if feature.type == "number" else whole

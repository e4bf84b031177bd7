"""Recognizes records that are streamd's own events already, and so need no source."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from streamd.decode.wire import StrictEvent

UNITS = ("s", "ms", "us")
"""Units of the times of streamd's own events."""


def doubt_of_own_events(topic: str, rows: Sequence[Any], form: str) -> str:
    """A sentence on a source that streamd's own events do not need, with the settings that they
    do; "" if a row is no such event.

    form: of the times, as in a source.
    """
    try:
        events = [msgspec.convert(row, StrictEvent) for row in rows]
    except msgspec.ValidationError:
        return ""
    edges = [event for event in events if event.type == "edge"]
    if not edges or form not in UNITS or not all(map(_is_complete, edges)):
        return ""
    settings = [f"kafka: {{topics: [{topic}]}}", f"stream: {_stream_settings(events, form)}"]
    # Sets, and features by name, are declared.
    named = [name for name in ("edge_set", "node_set") if any(getattr(e, name) for e in events)]
    declared = ["graph." + name + "s" for name in named]
    if any(isinstance(event.features, Mapping) for event in events):
        declared.append("the features that they name, in graph")
    more = f", with declarations of {' and '.join(declared)}" if declared else ""
    return (
        f"these records are streamd's own events, which need no source: {' and '.join(settings)} "
        f"are enough{more}"
    )


def _is_complete(edge: StrictEvent) -> bool:
    return edge.src is not None and edge.dst is not None and type(edge.time) is int


def _stream_settings(events: Sequence[StrictEvent], form: str) -> str:
    """The settings of `stream` for events, as YAML."""
    widths = {
        "edge_feature_dim": _width([e.features for e in events if e.type == "edge"]),
        "node_feature_dim": _width([e.features for e in events if e.type == "node"]),
        "label_dim": _width([e.target for e in events if e.type == "label"]),
    }
    parts = [f"{name}: {width}" for name, width in widths.items() if width]
    return f"{{{', '.join([f'time_unit: {form}', *parts])}}}"


def _width(values: Sequence[Any]) -> int:
    """The greatest length of the lists among values."""
    return max((len(value) for value in values if isinstance(value, list)), default=0)

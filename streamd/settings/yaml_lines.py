"""Where in a settings file a key stands, and which keys may stand there, for errors."""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel

from streamd.settings.sets import Part


def line_of(path: Path, place: Sequence[str | int]) -> int | None:
    """The line, from 1, of a key in a YAML file, or of the nearest key above it; None without one.

    place: the key, step by step, such as ("sources", 0, "fields").
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    line = None
    for step in place:
        # A mapping's node holds pairs of nodes, a sequence's the nodes of its items.
        below = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(step):
                    below, line = value, key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            below = node.value[step] if step < len(node.value) else None
            line = line if below is None else below.start_mark.line + 1
        if below is None:
            break
        node = below
    return line


def nearest_name(model: type[BaseModel], place: Sequence[str | int]) -> str:
    """Complete an error about an unknown key inside a declaration; empty where nothing is near.

    model: at the top of the settings tree.
    """
    for step in place[:-1]:
        if isinstance(step, str) and step in model.model_fields:
            inner = next(_models_in(model.model_fields[step].annotation), None)
            model = inner or model
    close = difflib.get_close_matches(str(place[-1]), list(model.model_fields), 1, 0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(model.model_fields)}" if issubclass(model, Part) else ""


def _models_in(kind: Any) -> Iterator[type[BaseModel]]:
    """The models in an annotation, also inside tuples, mappings and unions."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from _models_in(part)

"""Reads a settings file, and finds the line of each key."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel

from streamd.errors import SettingsError
from streamd.settings.nearest import nearest
from streamd.settings.sets import Part

MAX_SHOWN = 60
"""Longest part of a line that an error prints, in characters."""


class _Loader(yaml.SafeLoader):
    """A YAML loader that records repeated keys of a mapping, of which the usual loader silently
    keeps the last. repeated: (key, line from 1)."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[tuple[str, int]] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        known = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in known:
                self.repeated.append((key.value, key.start_mark.line + 1))
            known.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)


class SettingsFile:
    """A YAML file of settings. content: its mapping. repeated: as of the loader."""

    def __init__(self, path: Path) -> None:
        """Raises: SettingsError if the file cannot be read, or is no mapping."""
        self.path = path
        try:
            loader = _Loader(path.read_text(encoding="utf-8"))
            self._root = loader.get_single_node()
            content = {} if self._root is None else loader.construct_document(self._root) or {}
        except yaml.YAMLError as error:
            raise SettingsError(
                f"Settings file {path} cannot be read: {_yaml_words(error)}.",
                "put text with characters such as : or # in quotes, and check the indentation.",
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise SettingsError(
                f"Settings file {path} cannot be read: {why}.",
                "check --config or STREAMD_CONFIG; `streamd init` writes a first file.",
            ) from None
        if not isinstance(content, dict):
            raise SettingsError(
                f"Settings file {path} must hold a mapping, not a {type(content).__name__}.",
                "write `section: {setting: value}`.",
            )
        self.content: dict[Any, Any] = content
        self.repeated = loader.repeated

    def line_of(self, steps: Sequence[str | int]) -> int | None:
        """The line, from 1, of a key, or of the nearest key above it; None if there is none.

        steps: the steps of the key, such as ("sources", 0, "fields").
        """
        node, line, step = self._root, None, 0
        while step < len(steps):
            below, num_steps = None, 1
            # A mapping's node has pairs of nodes, a sequence's has the nodes of its items.
            if isinstance(node, yaml.MappingNode):
                # A key in the file may have several steps, such as training.epochs.
                names = {
                    ".".join(map(str, steps[step:n])): n for n in range(step + 1, len(steps) + 1)
                }
                for key, value in node.value:
                    if isinstance(key, yaml.ScalarNode) and key.value in names:
                        below, line = value, key.start_mark.line + 1
                        num_steps = names[key.value] - step
            elif isinstance(node, yaml.SequenceNode):
                index = steps[step]
                if isinstance(index, int) and index < len(node.value):
                    below = node.value[index]
                    line = below.start_mark.line + 1
            if below is None:
                break
            node = below
            step += num_steps
        return line


def _yaml_words(error: yaml.YAMLError) -> str:
    """The text of a YAML error with line and column, both from 1, and the line up to the column."""
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position + 1}, U+{int(error.character):04X}, is not allowed"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    # YAML counts lines and columns from 0, editors from 1.
    mark, begun = error.problem_mark, error.context_mark
    words = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    if error.context:
        since = "" if begun is None else f" from line {begun.line + 1}"
        words += f" {error.context}{since}"
    before = mark.buffer[: mark.pointer].rpartition("\n")[2] if mark.buffer else ""
    return f"{words}, after {before[-MAX_SHOWN:]!r}" if before.strip() else words


def nearest_name(model: type[BaseModel], steps: Sequence[str | int]) -> str:
    """The end of an error about an unknown key inside a declaration; empty if no name is near.

    model: of the settings tree's top.
    """
    for step in steps[:-1]:
        if isinstance(step, str) and step in model.model_fields:
            inner = next(_models_in(model.model_fields[step].annotation), None)
            model = inner or model
    close = nearest(str(steps[-1]), list(model.model_fields))
    if close is not None:
        return f"; did you mean {close!r}?"
    return f"; known are {', '.join(model.model_fields)}" if issubclass(model, Part) else ""


def _models_in(kind: Any) -> Iterator[type[BaseModel]]:
    """The models in an annotation, including those inside tuples, mappings and unions."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from _models_in(part)

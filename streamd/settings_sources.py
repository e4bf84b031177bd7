"""Where settings come from: the YAML file and the `STREAMD_...` variables, read as values by dotted
key such as `training.replay_events`.

What is read here is not validated: `streamd.settings.load_settings` does that for all sources
together.
"""

import difflib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_settings import BaseSettings, EnvSettingsSource

from streamd.errors import SettingsError

PREFIX = "STREAMD_"
"""Every variable that begins so must be a setting, so that a misspelt one is an error."""


def nearest(key: str, known: set[str]) -> str:
    """The end of an error message that names the known key nearest to an unknown one."""
    close = difflib.get_close_matches(key, sorted(known), 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else "; `streamd config` lists all settings"


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file. Raises: SettingsError where it cannot be read or is none."""
    try:
        content = yaml.safe_load(path.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(
            f"Settings file {path} cannot be read: {' '.join(str(error).split())}."
        ) from None
    if not isinstance(content, dict):
        raise SettingsError(
            f"Settings file {path} must hold a mapping, not a {type(content).__name__}."
        )
    return content


def flatten(
    tree: Mapping[str, Any], where: str, branches: Collection[str], at: str = ""
) -> dict[str, Any]:
    """Turn a file's nested mapping into values by dotted key.

    Args: where: the file's name, for errors; branches: names of the branches at the top of the
    settings tree; at: prefix of the keys, with its dot. Raises: SettingsError where a branch is not
    a mapping.
    """
    out: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{at}{key}"
        if not at and name in branches:
            if not isinstance(value, Mapping):
                raise SettingsError(f"Setting {name} ({where}) must be a mapping of its settings.")
            out |= flatten(value, where, branches, f"{name}.")
        else:
            out[name] = value
    return out


def read_environment(
    environ: Mapping[str, str], tree: type[BaseSettings], paths: Iterable[tuple[str, ...]]
) -> dict[str, Any]:
    """Read the `STREAMD_...` variables as values by dotted key.

    Args: environ: variable -> text; tree: the settings tree; paths: those of all its settings.
    Raises: SettingsError where a variable is unknown, or is not JSON though its setting is a list
    or mapping.
    """
    names = {PREFIX + "__".join(p).upper(): p for p in paths}
    values: dict[str, Any] = {}
    source = EnvSettingsSource(tree, env_prefix=PREFIX, env_nested_delimiter="__")
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name == f"{PREFIX}CONFIG":
            continue
        if name not in names:
            close = difflib.get_close_matches(name, sorted(names), 1, 0.5)
            raise SettingsError(
                f"Unknown variable {name}" + (f"; did you mean {close[0]}?" if close else ".")
            )

        # Find the setting's field in the tree.
        path = names[name]
        model: type[BaseModel] = tree
        for step in path[:-1]:
            branch = model.model_fields[step].annotation
            assert isinstance(branch, type)
            model = branch
        field = model.model_fields[path[-1]]

        # Pydantic parses numbers and words itself, but not lists and mappings.
        value: Any = text
        if source.field_is_complex(field):
            try:
                value = json.loads(text)
            except ValueError:
                raise SettingsError(
                    f"Variable {name} must be JSON, for example '[\"a\"]'."
                ) from None
        values[".".join(path)] = value
    return values

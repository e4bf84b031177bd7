"""Reads the settings from a YAML file, then `STREAMD_...` variables, then the command line.

A variable names a setting with double underscores: `STREAMD_TRAINING__REPLAY_EVENTS=400`. An
unknown key is an error that names the nearest known one. The tree of `streamd.settings.tree` is
exported here too; each component gets its own branch of it.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import EnvSettingsSource

from streamd.errors import SettingsError
from streamd.settings.branch import Branch
from streamd.settings.contradictions import (
    check_branches,
    check_rules,
    check_sources,
    check_topics,
    check_trial_edges,
    check_widths,
)
from streamd.settings.kafka_settings import KafkaSettings, SchemaRegistrySettings
from streamd.settings.log import HoldSettings, LeaderSettings, LogSettings, without_secrets
from streamd.settings.mistakes import SECRET_WORDS, Mistakes
from streamd.settings.nearest import nearest_key
from streamd.settings.server import LOOPBACK, ServerSettings, TelemetrySettings, has_keys
from streamd.settings.sets import Contradiction, check_sets
from streamd.settings.tree import (
    FILE_VARIABLE,
    MODEL_PLUGINS,
    PREFIX,
    BootstrapSettings,
    GpuSettings,
    GraphSettings,
    IngestSettings,
    ModelName,
    ModelSettings,
    RegistrySettings,
    RetentionSettings,
    Settings,
    StreamSettings,
    TrainingSettings,
    WindowSettings,
    edge_sets,
    leaves,
    node_sets,
    schema_of,
    with_schema,
)
from streamd.settings.trials import TrialSettings
from streamd.settings.usable_sources import UsableSources, usable_sources
from streamd.settings.yaml_lines import SettingsFile

__all__ = [
    "BootstrapSettings",
    "Branch",
    "GpuSettings",
    "GraphSettings",
    "HoldSettings",
    "IngestSettings",
    "KafkaSettings",
    "LOOPBACK",
    "LeaderSettings",
    "LogSettings",
    "MODEL_PLUGINS",
    "ModelName",
    "ModelSettings",
    "RegistrySettings",
    "RetentionSettings",
    "SchemaRegistrySettings",
    "ServerSettings",
    "Settings",
    "StreamSettings",
    "TelemetrySettings",
    "TrainingSettings",
    "TrialSettings",
    "WindowSettings",
    "as_environment",
    "changed_keys",
    "check_access",
    "edge_sets",
    "effective",
    "has_keys",
    "leaves",
    "load_settings",
    "node_sets",
    "schema_of",
    "with_schema",
]

KEYS = ("api_keys", "admin_keys")
"""Settings that are lists of secrets."""
ACCESS = [f"server.{keys}{end}" for keys in KEYS for end in ("", "_file")]
"""Settings that make the API require keys."""
SET_KEYS = "set STREAMD_SERVER__API_KEYS='[\"...\"]' or bind 127.0.0.1."
"""The operator action of a server that is open to other machines."""
DECLARATIONS = (("sources",), ("graph", "node_sets"), ("graph", "edge_sets"))
"""Settings with nested declarations as values."""
STORE_URL = ("log", "store")
"""A setting that is a URL: its user, password and query may be credentials."""
DECLARING = {".".join(path) for path in DECLARATIONS} | {
    "stream.edge_feature_dim",
    "stream.node_feature_dim",
    "stream.label_dim",
    "kafka.topics",
}
"""Settings that the check of sources and declared sets reads."""


def load_settings(
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Settings, dict[str, str]]:
    """Read the settings from all sources.

    Args: path: a YAML file, or None; overrides: dotted key -> value, with the highest precedence;
    environ: defaults to `os.environ`. Returns: the settings, and the source of each value: dotted
    key -> "default", "file", "environment" or "command line". Raises: SettingsError that lists all
    errors: each with its key, its source with file and line, and the nearest known key.
    """
    environ = os.environ if environ is None else environ
    known = {".".join(p) for p in leaves()}
    origin = dict.fromkeys(known, "default")
    file = SettingsFile(path) if path else None
    mistakes = Mistakes(origin, file)
    given: dict[str, Any] = {}

    # Later sources override earlier ones.
    for source, values in (
        ("file", _flatten(file.content, mistakes) if file else {}),
        ("environment", _read_environment(environ, mistakes)),
        ("command line", dict(overrides or {})),
    ):
        for key, value in values.items():
            if key in known:
                origin[key] = source
                given[key] = value
            else:
                mistakes.add_unknown(key, source)

    # Check each value, then the usable ones together.
    usable: UsableSources | None = None
    try:
        settings = Settings(**_tree_of(given))
    except ValidationError as error:
        if "sources" not in mistakes.doubtful:
            usable = usable_sources(given.get("sources"), error)
        mistakes.add_misfits(error, _tree_of(given))
        used = {key: value for key, value in given.items() if key not in mistakes.doubtful}
        if usable is not None:
            mistakes.doubtful.discard("sources")
            used["sources"] = usable.sources
        try:
            settings = Settings(**_tree_of(used))
        except ValidationError:
            mistakes.raise_any()
            raise
    settings = _checked_together(settings, origin, mistakes, usable)
    if mistakes.any and not {"server.host", *ACCESS} & mistakes.doubtful:
        mistakes.add_all(_check_run(settings.server))
    mistakes.raise_any()
    return _with_earlier_directory(settings, origin), origin


def _checked_together(
    s: Settings, origin: Mapping[str, str], mistakes: Mistakes, usable: UsableSources | None
) -> Settings:
    """Check settings against one another, and set those that declarations imply. usable: the
    sources in `s` if not all are usable."""
    # Skip contradictions that involve a setting with a rejected value.
    doubtful = frozenset(mistakes.doubtful)

    def add_all(found: Iterable[Contradiction]) -> bool:
        certain = [m for m in found if not any(key in _named_in(m) for key in doubtful)]
        return mistakes.add_all(certain if usable is None else map(usable.renumber, certain))

    # Each source by itself, also if the declared sets are doubtful.
    if "sources" not in doubtful:
        add_all(check_rules(s.sources))

    # Without valid sets there is no schema to compare with.
    if not doubtful & DECLARING and not add_all(check_sets(s.graph.node_sets, s.graph.edge_sets)):
        add_all(check_widths(s, origin))
        s = _add_implied(s, origin)
        add_all(check_topics(s))
        add_all(check_sources(s.sources, node_sets(s), edge_sets(s), schema_of(s)))
        add_all(check_trial_edges(s.trials, edge_sets(s)))
    add_all(check_branches(s))
    return s


def _named_in(contradiction: Contradiction) -> str:
    """A contradiction as text with its key, which contains the names of the compared settings."""
    return f"{'.'.join(map(str, contradiction.steps))} {contradiction.what}"


def _tree_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key, nested as pydantic reads them."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *branch, leaf = key.split(".")
        node = tree
        for name in branch:
            node = node.setdefault(name, {})
        node[leaf] = value
    return tree


def _add_implied(s: Settings, origin: Mapping[str, str]) -> Settings:
    """The settings with the widths and topics that declarations imply."""
    schema = schema_of(s)
    widths = {
        "edge_feature_dim": schema.edge_feature_dim,
        "node_feature_dim": schema.node_feature_dim,
    }
    stream = s.stream.model_copy(update=widths)

    # The topics of sources need not be repeated in kafka.topics.
    topics = tuple(dict.fromkeys(source.topic for source in s.sources))
    kafka = s.kafka
    if origin["kafka.topics"] == "default" and topics:
        kafka = s.kafka.model_copy(update={"topics": topics})
    return s.model_copy(update={"stream": stream, "kafka": kafka})


def changed_keys(old: Settings, new: Settings) -> list[str]:
    """The dotted keys of settings that differ."""

    def value(settings: Settings, path: tuple[str, ...]) -> Any:
        out: Any = settings
        for name in path:
            out = getattr(out, name)
        return out

    return [".".join(path) for path in leaves() if value(old, path) != value(new, path)]


def effective(settings: Settings) -> dict[str, Any]:
    """The values of all settings by dotted key, with secrets masked."""
    out: dict[str, Any] = {}
    for path in leaves():
        value: Any = settings
        for name in path:
            value = getattr(value, name)
        # `kafka.client` is a mapping, and holds secrets under kafka-python's own names.
        if path in DECLARATIONS:
            value = _plain(value)
        elif isinstance(value, dict):
            value = {
                k: "***" if any(w in k.lower() for w in SECRET_WORDS) else v
                for k, v in value.items()
            }
        elif path[-1] in KEYS:
            value = ["***" for _ in value]
        elif isinstance(value, SecretStr):
            value = "***"
        elif path == STORE_URL:
            value = without_secrets(value)
        out[".".join(path)] = str(value) if isinstance(value, Path) else value
    return out


def as_environment(settings: Settings) -> dict[str, str]:
    """The settings as `STREAMD_...` variables, by which `streamd run` passes them to its roles.

    A command line would show the keys to every user of the machine.
    """
    out: dict[str, str] = {}
    for path in leaves():
        value: Any = settings
        for name in path:
            value = getattr(value, name)
        if value is None:
            continue
        # Roles need the secrets themselves, not their masks.
        if path[-1] in KEYS:
            value = [k.get_secret_value() for k in value]
        elif isinstance(value, SecretStr):
            value = value.get_secret_value()
        elif path in DECLARATIONS:
            value = _plain(value)
        text = str(value) if isinstance(value, str | int | float | Path) else json.dumps(value)
        out[PREFIX + "__".join(path).upper()] = text
    return out


def _plain(declaration: Any) -> Any:
    """A declaration as lists and mappings, without defaults."""
    parts = declaration.items() if isinstance(declaration, dict) else enumerate(declaration)
    dumped = {key: part.model_dump(mode="json", exclude_defaults=True) for key, part in parts}
    return dumped if isinstance(declaration, dict) else list(dumped.values())


def check_access(server: ServerSettings) -> None:
    """Check that a server that other machines can reach requires API keys. Call it before
    listening. Raises: SettingsError."""
    if server.host not in LOOPBACK and not has_keys(server):
        raise SettingsError(
            f"Other machines can reach server.host {server.host}, but server.api_keys is empty.",
            SET_KEYS,
        )


def _check_run(server: ServerSettings) -> Iterator[Contradiction]:
    """Check a server as `check_access` does, for the list of errors. Only `streamd run` refuses
    such a server, so this is no error on its own."""
    try:
        check_access(server)
    except SettingsError:
        what = f"other machines can reach {server.host}, but server.api_keys is empty"
        yield Contradiction(("server", "host"), what, SET_KEYS)


def _with_earlier_directory(s: Settings, origin: Mapping[str, str]) -> Settings:
    """The settings with the parent folder as `data_dir`, if that has a log and `data_dir` does not
    exist: the image of 0.1.0 had the log in the root of its volume, later images have it in a
    subfolder."""
    data_dir, above = s.data_dir, s.data_dir.parent
    if origin["data_dir"] != "environment" or data_dir.exists():
        return s
    if not (above / "published").exists():
        return s
    training = s.training
    if training.checkpoint_dir == data_dir:
        training = training.model_copy(update={"checkpoint_dir": above})
    return s.model_copy(update={"data_dir": above, "training": training})


def _flatten(tree: Mapping[Any, Any], mistakes: Mistakes) -> dict[str, Any]:
    """Flatten a file's nested mapping to values by dotted key. mistakes: gets each branch that is
    no mapping."""
    branches = {p[0] for p in leaves() if len(p) > 1}
    out: dict[str, Any] = {}
    for name, value in tree.items():
        if name not in branches:
            out[str(name)] = value
        elif isinstance(value, Mapping):
            out |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            mistakes.add((name,), "it must be a mapping of its settings", source="file")
    return out


def _read_environment(environ: Mapping[str, str], mistakes: Mistakes) -> dict[str, Any]:
    """Read the `STREAMD_...` variables as values by dotted key. mistakes: gets each variable that
    is unknown, or is not JSON although its setting is a list or mapping."""
    names = {PREFIX + "__".join(p).upper(): p for p in leaves()}
    values: dict[str, Any] = {}
    source = EnvSettingsSource(Settings, env_prefix=PREFIX, env_nested_delimiter="__")
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name == FILE_VARIABLE:
            continue
        if name not in names:
            close = nearest_key(name, (*names, FILE_VARIABLE), "__")
            near = f"; did you mean {close}?" if close else "."
            setting = ".".join(names[close]) if close in names else None
            mistakes.add_variable(f"Unknown variable {name}{near}", setting)
            continue

        # Find the setting's field in the tree.
        path = names[name]
        model: type[BaseModel] = Settings
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
                mistakes.add_variable(
                    f"Variable {name} must be JSON, for example '[\"a\"]'.", ".".join(path)
                )
                continue
        values[".".join(path)] = value
    return values

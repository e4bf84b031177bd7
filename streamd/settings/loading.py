"""Reads the settings from a YAML file, then `STREAMD_...` variables, then the command line.

A variable names a setting with double underscores: `STREAMD_TRAINING__REPLAY_EVENTS=400`. An
unknown key is an error that names the nearest known one. The tree of `streamd.settings.tree` is
exported here too; each component gets its own branch of it.
"""

import difflib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import EnvSettingsSource

from streamd.errors import SettingsError
from streamd.settings.branch import Branch
from streamd.settings.log import LeaderSettings, LogSettings, without_secrets
from streamd.settings.server import LOOPBACK, ServerSettings, TelemetrySettings, has_keys
from streamd.settings.sets import Misplaced, check_sets, nearest_of
from streamd.settings.sources import REGISTRY_FORMATS, check_sources
from streamd.settings.tree import (
    MODEL_PLUGINS,
    PREFIX,
    BootstrapSettings,
    GpuSettings,
    GraphSettings,
    HoldSettings,
    IngestSettings,
    KafkaSettings,
    ModelName,
    ModelSettings,
    RegistrySettings,
    RetentionSettings,
    SchemaRegistrySettings,
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
from streamd.settings.yaml_lines import line_of, nearest_name

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
    "WindowSettings",
    "as_environment",
    "changed",
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

SECRET_WORDS = ("password", "secret", "token", "key", "proxy")
"""Parts of names whose values are never shown; a proxy's address may hold a password."""
KEYS = ("api_keys", "admin_keys")
"""Settings that are lists of secrets."""
DECLARATIONS = (("sources",), ("graph", "node_sets"), ("graph", "edge_sets"))
"""Settings whose values are trees of their own."""
STORE_URL = ("log", "store")
"""Setting that is a URL, in which user, password and query may be credentials."""
MAX_SHOWN = 80
"""Most characters of a wrong value that an error shows."""


def load_settings(
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Settings, dict[str, str]]:
    """Read the settings from all sources.

    Args: path: a YAML file, or None; overrides: dotted key -> value, strongest; environ: defaults
    to `os.environ`.
    Returns: the settings, and where each value comes from: dotted key -> "default", "file",
    "environment" or "command line".
    Raises: SettingsError naming the key, its source and the nearest known key.
    """
    environ = os.environ if environ is None else environ
    known = {".".join(p) for p in leaves()}
    branches = {p[0] for p in leaves() if len(p) > 1}
    origin = dict.fromkeys(known, "default")
    merged: dict[str, Any] = {}

    # Later sources are stronger; each value goes into the tree where its key says.
    for source, values in (
        ("file", _flatten(_read_yaml(path), str(path), branches) if path else {}),
        ("environment", _read_environment(environ)),
        ("command line", dict(overrides or {})),
    ):
        for key, value in values.items():
            if key not in known:
                raise SettingsError(f"Unknown setting {key!r} ({source}){_nearest(key, known)}.")
            origin[key] = source
            *branch, leaf = key.split(".")
            node = merged
            for name in branch:
                node = node.setdefault(name, {})
            node[leaf] = value

    # Check values one by one, then together; a secret is not shown in the error either.
    try:
        settings = Settings(**merged)
    except ValidationError as error:
        raise _misfit(error, origin, path) from None
    try:
        settings = _completed(settings, origin)
    except Misplaced as error:
        raise SettingsError(f"Setting {_where(error.place, origin, path)}: {error}.") from None
    _check_together(settings)
    return _with_earlier_directory(settings, origin), origin


def _where(place: Sequence[str | int], origin: Mapping[str, str], path: Path | None) -> str:
    """A setting's key with its source; inside a declaration of a file, also with the line."""
    # The longest beginning that is a setting; what follows is inside its value.
    for end in range(len(place), 0, -1):
        source = origin.get(".".join(map(str, place[:end])))
        if source is not None:
            break
    else:
        end, source = len(place), "input"
    line = line_of(path, place) if path is not None and source == "file" else None
    named = f"{source} {path} line {line}" if line is not None else source
    return f"{'.'.join(map(str, place))} ({named})"


def _misfit(error: ValidationError, origin: Mapping[str, str], path: Path | None) -> SettingsError:
    """The first of pydantic's errors as one line; a secret is not shown in it."""
    # A misspelt key is a missing one too: the one that is there says more.
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    place = first["loc"]
    says = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        return SettingsError(
            f"Setting {_where(place, origin, path)} is unknown{nearest_name(Settings, place)}."
        )
    key = ".".join(str(x) for x in place)
    shown = repr(first["input"])
    secret = any(w in key for w in SECRET_WORDS)
    got = "" if secret or len(shown) > MAX_SHOWN else f", got {shown}"
    return SettingsError(f"Setting {_where(place, origin, path)}: {says}{got}.")


def _completed(s: Settings, origin: Mapping[str, str]) -> Settings:
    """The settings with the widths and topics that their declarations imply.

    Raises: Misplaced where a declaration contradicts another setting.
    """
    # A width that is set must be the declared one.
    check_sets(s.graph.node_sets, s.graph.edge_sets)
    schema = schema_of(s)
    for kind in ("edge", "node"):
        name = f"{kind}_feature_dim"
        given, follows = getattr(s.stream, name), getattr(schema, name)
        if origin[f"stream.{name}"] != "default" and given != follows:
            raise Misplaced(
                ("stream", name),
                f"it is {given}, but what graph.{kind}_sets declares is {follows} wide; "
                "leave it out",
            )
    widths = {
        "edge_feature_dim": schema.edge_feature_dim,
        "node_feature_dim": schema.node_feature_dim,
    }
    stream = s.stream.model_copy(update=widths)

    # Topics of sources are read without being named twice.
    topics = tuple(source.topic for source in s.sources)
    kafka = s.kafka
    if origin["kafka.topics"] == "default" and topics:
        kafka = s.kafka.model_copy(update={"topics": tuple(dict.fromkeys(topics))})
    for i, topic in enumerate(topics):
        if topic not in kafka.topics:
            near = nearest_of(topic, kafka.topics)
            raise Misplaced(("sources", i, "topic"), f"{topic} is not in kafka.topics{near}")

    check_sources(s.sources, node_sets(s), edge_sets(s), schema)
    return s.model_copy(update={"stream": stream, "kafka": kafka})


def changed(old: Settings, new: Settings) -> list[str]:
    """The settings that differ, by dotted key."""

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
    """Write the settings as `STREAMD_...` variables, in which `streamd run` hands them to roles.

    A command line would show the keys to every user of the machine.
    """
    out: dict[str, str] = {}
    for path in leaves():
        value: Any = settings
        for name in path:
            value = getattr(value, name)
        if value is None:
            continue
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
    """A declaration as lists and mappings, without what was left out."""
    parts = declaration.items() if isinstance(declaration, dict) else enumerate(declaration)
    dumped = {key: part.model_dump(mode="json", exclude_defaults=True) for key, part in parts}
    return dumped if isinstance(declaration, dict) else list(dumped.values())


def check_access(server: ServerSettings) -> None:
    """Check that what others can reach asks for keys; for those who listen. Raises:
    SettingsError."""
    if server.host not in LOOPBACK and not has_keys(server):
        raise SettingsError(
            f"server.host is {server.host}, which others can reach, but server.api_keys is empty.",
            "set STREAMD_SERVER__API_KEYS='[\"...\"]' or bind 127.0.0.1.",
        )


def _with_earlier_directory(s: Settings, origin: Mapping[str, str]) -> Settings:
    """The settings with the folder above `data_dir`, if that holds a log and `data_dir` does not
    exist: the image of 0.1.0 kept the log in the root of its volume, this one keeps it in a folder
    there."""
    data_dir, above = s.data_dir, s.data_dir.parent
    if origin["data_dir"] != "environment" or data_dir.exists():
        return s
    if not (above / "published").exists():
        return s
    training = s.training
    if training.checkpoint_dir == data_dir:
        training = training.model_copy(update={"checkpoint_dir": above})
    return s.model_copy(update={"data_dir": above, "training": training})


def _check_together(s: Settings) -> None:
    """Check what no setting alone can tell. Raises: SettingsError."""
    # The server: how it is reached.
    if (s.server.tls_cert_file is None) != (s.server.tls_key_file is None):
        raise SettingsError(
            "server.tls_cert_file and server.tls_key_file belong together.", "set both, or neither."
        )

    if s.server.workers > 1 and not s.server.port:
        raise SettingsError(
            "server.workers share one port, and server.port is 0.", "set server.port to a number."
        )

    # Who leads next must find what the one before had.
    if s.log.member == "standby" and not (s.log.name and s.log.store):
        raise SettingsError(
            "log.member is standby, which needs log.name and log.store.",
            "set both, or log.member: leader on a machine that is alone.",
        )

    # Model and graph: sizes that must fit one another.
    if s.model.dim % s.model.heads:
        raise SettingsError(
            f"model.dim {s.model.dim} is not a multiple of model.heads {s.model.heads}."
        )
    if s.graph.max_block_entries & (s.graph.max_block_entries - 1):
        raise SettingsError(
            f"graph.max_block_entries is {s.graph.max_block_entries}; it must be a power of two."
        )
    if any(h <= 0 for h in s.model.half_lives_seconds):
        raise SettingsError("model.half_lives_seconds must all be above 0.")

    _check_schema_registry(s)

    # Kafka: settings that have a key of their own, and parts of the partitions.
    for name in ("group_id", "bootstrap_servers"):
        if name in s.kafka.client:
            raise SettingsError(f"kafka.client.{name} is set by kafka.{name}.")
    if s.ingest.shard is not None:
        index, count = (int(x) for x in s.ingest.shard.split("/"))
        if index > count:
            raise SettingsError(
                f"ingest.shard {s.ingest.shard} does not exist: "
                f"shards are 1/{count} to {count}/{count}."
            )


def _check_schema_registry(s: Settings) -> None:
    """Check how the schema registry is reached, and that it is where it is needed.

    Raises: SettingsError.
    """
    r = s.schema_registry
    for source in s.sources:
        if source.format in REGISTRY_FORMATS and r.url is None:
            raise SettingsError(
                f"The source of {source.topic} is {source.format}, "
                "but schema_registry.url is not set.",
                "set it to the registry's address.",
            )
    if r.secret is not None and r.secret_file is not None:
        raise SettingsError(
            "schema_registry.secret and schema_registry.secret_file are both set.", "keep one."
        )
    if r.user is not None and r.secret is None and r.secret_file is None:
        raise SettingsError("schema_registry.user needs schema_registry.secret.")
    if r.key_file is not None and r.cert_file is None:
        raise SettingsError("schema_registry.key_file needs schema_registry.cert_file.")
    is_https = r.url is not None and r.url.startswith("https")
    for name in ("ca_file", "cert_file"):
        if getattr(r, name) is not None and not is_https:
            raise SettingsError(
                f"schema_registry.{name} means nothing unless schema_registry.url is https."
            )


def _nearest(key: str, known: set[str]) -> str:
    """Complete an error message by the known key that is nearest to an unknown one."""
    # Half of the letters must agree; a wilder guess would mislead.
    close = difflib.get_close_matches(key, sorted(known), 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else "; `streamd config` lists all settings"


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice; YAML's own loader takes the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        known = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in known:
                raise yaml.constructor.ConstructorError(
                    problem=f"{key.value!r} is there twice", problem_mark=key.start_mark
                )
            known.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file. Raises: SettingsError where it cannot be read or is none."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(
            f"Settings file {path} cannot be read: {' '.join(str(error).split())}."
        ) from None
    if not isinstance(content, dict):
        raise SettingsError(
            f"Settings file {path} must hold a mapping, not a {type(content).__name__}."
        )
    return content


def _flatten(
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
            out |= _flatten(value, where, branches, f"{name}.")
        else:
            out[name] = value
    return out


def _read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the `STREAMD_...` variables as values by dotted key.

    Raises: SettingsError where a variable is unknown, or is not JSON though its setting is a list
    or mapping.
    """
    names = {PREFIX + "__".join(p).upper(): p for p in leaves()}
    values: dict[str, Any] = {}
    source = EnvSettingsSource(Settings, env_prefix=PREFIX, env_nested_delimiter="__")
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
                raise SettingsError(
                    f"Variable {name} must be JSON, for example '[\"a\"]'."
                ) from None
        values[".".join(path)] = value
    return values

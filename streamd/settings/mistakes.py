"""Collects all errors in the settings into one exception."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from streamd.errors import SettingsError
from streamd.settings.nearest import CLIENT, CLIENT_OPTIONS, nearest_key
from streamd.settings.sets import Contradiction
from streamd.settings.tree import PREFIX, Settings, leaves
from streamd.settings.yaml_lines import SettingsFile, nearest_name

SECRET_WORDS = ("password", "secret", "token", "key", "proxy")
"""Parts of the names of secret settings, which are never printed. The address of a proxy may
contain a password."""
MAX_SHOWN = 80
"""Maximum number of characters of a wrong value in an error."""
ORDER = ("file", "environment", "command line", "default")
"""The sources of settings, in the order in which errors are listed."""
EXAMPLES: dict[str | int, str] = {
    "where": "{kind: [view]}",
    "fields": "{src: user_id, dst: item_id, time: ts}",
    "features": "{price: {type: number}}",
    "edge_sets": "{views: {source: user, target: item}}",
    "node_sets": "{user: {}, item: {}}",
}
"""Example mappings by the name of the setting."""
ACTIONS = {
    "file": "correct it in the file.",
    "environment": "correct the variable, or unset it.",
    "command line": "correct the option.",
    "default": "set it.",
}
"""The operator action of an error that has no other, by the source of the value."""
TYPES = ("str", "int", "float", "bool")
"""Type names that pydantic appends to the key of a value of several possible types."""
KeySteps = Sequence[str | int]
"""The steps of a key, such as ("sources", 0, "fields")."""


class Mistakes:
    """The errors found so far. Owner: the call that reads the settings.

    doubtful: dotted keys of settings with an error; contradictions with them are not reported.
    """

    def __init__(self, origin: Mapping[str, str], file: SettingsFile | None) -> None:
        """origin: dotted key of each setting -> source; it may change until `add` is called."""
        self._origin = origin
        self._file = file
        self._found: list[tuple[int, int, str]] = []
        self.doubtful: set[str] = set()

        # A repeated key is ambiguous.
        if file is not None:
            for key, line in file.repeated:
                where = f"Settings file {file.path} line {line}"
                self._note("file", line, f"{where}: {key!r} is there twice.", "remove one of them.")

    def add(self, steps: KeySteps, what: str, action: str = "", source: str = "") -> None:
        """Add an error in a setting's value, or inside it. source: of a value that was rejected
        before its source was recorded."""
        self.doubtful |= self._settings_at(steps)
        self._add(steps, source or self._source_of(steps), f": {what}", action)

    def add_all(self, contradictions: Iterable[Contradiction]) -> bool:
        """Add contradictions. Returns: whether there were any."""
        found = list(contradictions)
        for one in found:
            self.add(one.steps, one.what, one.action)
        return bool(found)

    def add_unknown(self, key: str, source: str) -> None:
        """Add an unknown key. key: dotted."""
        # A key without a dot may be a misspelt branch.
        count = key.count(".") + 1
        settings = [".".join(steps) for steps in leaves()]
        groups = [".".join(one.split(".")[:count]) for one in settings]
        options = [f"{CLIENT}.{option}" for option in CLIENT_OPTIONS]
        close = nearest_key(key, list(dict.fromkeys(settings + groups + options)), ".")
        near = f"; did you mean {close!r}?" if close else ""
        self.doubtful |= self._settings_at(close.split(".")) if close else set()
        action = "" if close else "remove it; `streamd config` lists all settings."
        self._add(key.split("."), source, f" is unknown{near}", action)

    def add_variable(self, text: str, key: str | None) -> None:
        """Add an error in a variable, as a sentence. key: of the variable's setting, None if it has
        none."""
        self.doubtful |= self._origin.keys() if key is None else {key}
        self._note("environment", 0, text, ACTIONS["environment"])

    def add_misfits(self, error: ValidationError, tree: Mapping[str, Any]) -> None:
        """Add the errors of pydantic. tree: the values that it checked."""
        found = error.errors()
        misspelt = [e["loc"] for e in found if e["type"] == "extra_forbidden"]
        known: set[KeySteps] = set()
        for e in found:
            steps = e["loc"]
            if e["type"] == "extra_forbidden":
                self.doubtful |= self._settings_at(steps)
                near = nearest_name(Settings, steps)
                self._add(steps, self._source_of(steps), f" is unknown{near}")
                continue
            # A misspelt key also makes the right one missing: report only the misspelt one.
            if e["type"] == "missing":
                if not any(_may_be_meant(steps, other) for other in misspelt):
                    self.add(steps, e["msg"])
                continue
            # Pydantic reports an error for each type that a value may have; the first is enough.
            value_at = _existing(tree, steps)
            if value_at not in known:
                known.add(value_at)
                self.add(_without_types(steps, value_at), _wrong(steps, e))

    @property
    def any(self) -> bool:
        """Whether an error was found."""
        return bool(self._found)

    def raise_any(self) -> None:
        """Raise SettingsError with all errors, if there are any."""
        if self._found:
            ordered = sorted(self._found, key=lambda one: one[:2])
            raise settings_error([text for _, _, text in ordered])

    def _add(self, steps: KeySteps, source: str, text: str, action: str = "") -> None:
        line = self._file.line_of(steps) if self._file is not None and source == "file" else None
        name = ".".join(map(str, steps))
        named = source
        if line is not None and self._file is not None:
            named = f"file {self._file.path} line {line}"
        elif source == "environment":
            setting = min(self._settings_at(steps), default=name)
            named = f"environment {PREFIX}{setting.replace('.', '__').upper()}"
        end = "" if text.endswith("?") else "."
        text = f"Setting {name} ({named}){text}{end}"
        self._note(source, line or 0, text, action or ACTIONS[source])

    def _note(self, source: str, line: int, text: str, action: str) -> None:
        # SettingsError puts the action after the text.
        self._found.append((ORDER.index(source), line, str(SettingsError(text, action))))

    def _settings_at(self, steps: KeySteps) -> set[str]:
        """The settings at a key: the key's own, the one that contains it, or those of its
        branch."""
        for end in range(len(steps), 0, -1):
            name = ".".join(map(str, steps[:end]))
            found = {key for key in self._origin if key == name or key.startswith(f"{name}.")}
            if found:
                return found
        return set()

    def _source_of(self, steps: KeySteps) -> str:
        """The source of a setting's value; for a whole branch, the first source that is not the
        default."""
        sources = {self._origin[key] for key in self._settings_at(steps)}
        return min(sources, key=ORDER.index, default="default")


def settings_error(texts: Sequence[str]) -> SettingsError:
    """One error for one or more texts; several become a list."""
    if len(texts) == 1:
        return SettingsError(texts[0])
    listed = "\n".join(f"- {text}" for text in texts)
    return SettingsError(f"The settings have {len(texts)} errors:\n{listed}")


def _may_be_meant(missing: KeySteps, misspelt: KeySteps) -> bool:
    """Whether a misspelt key may be the missing one."""
    return missing[:-1] == misspelt[:-1] and bool(
        difflib.get_close_matches(str(misspelt[-1]), [str(missing[-1])], 1, 0.5)
    )


def _existing(tree: Any, steps: KeySteps) -> KeySteps:
    """The part of a key that exists in the tree of values; pydantic appends names of types."""
    node = tree
    for number, step in enumerate(steps):
        try:
            node = node[step]
        except (TypeError, LookupError):
            return steps[:number]
    return steps


def _without_types(steps: KeySteps, in_tree: KeySteps) -> KeySteps:
    """A key without the type names that pydantic appended. in_tree: its part in the tree."""
    added = [step for step in steps[len(in_tree) :] if str(step) in TYPES or "[" in str(step)]
    return steps[: len(steps) - len(added)]


def _wrong(steps: KeySteps, error: Any) -> str:
    """An error of pydantic in the words of a settings file, with the wrong value."""
    got = _got(steps, error["input"])
    # A wrong type: show the right form.
    if error["type"] in ("tuple_type", "list_type"):
        if steps[-1] == "sources":
            return f"it must be a list of mappings, each with a topic{got}"
        # The usual slip: one value instead of a list.
        shown = f": [{error['input']}]" if got and isinstance(error["input"], str | int) else ""
        return f"it must be a list{shown}" + ("" if shown else got)
    if error["type"] in ("dict_type", "model_type", "model_attributes_type"):
        example = next((EXAMPLES[s] for s in reversed(steps) if s in EXAMPLES), "{name: value}")
        return f"it must be a mapping, such as {example}{got}"
    if error["type"] == "path_type":
        return f"it must be a path, as text{got}"
    return str(error["msg"]).removeprefix("Value error, ") + got


def _got(steps: KeySteps, value: Any) -> str:
    """A wrong value for an error text; empty if it is secret, blank or long."""
    key = ".".join(map(str, steps))
    shown = repr(value)
    is_secret = any(word in key for word in SECRET_WORDS)
    is_blank = isinstance(value, str) and not value.strip()
    return "" if is_secret or is_blank or len(shown) > MAX_SHOWN else f", got {shown}"

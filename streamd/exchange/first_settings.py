"""Writes a first settings file from a guessed mapping, with comments."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from streamd.decode.sources.paths import parsed
from streamd.errors import BadEvent, SettingsError
from streamd.exchange.guess import MAX_WIDTH, Guess, to_yaml
from streamd.exchange.load import FileRow

DEFAULTS = """\
# Settings that are often changed, with their defaults; `streamd config` lists all. An editor
# completes them once `streamd config --schema > settings.schema.json` ran and the first line of
# this file is `# yaml-language-server: $schema=settings.schema.json`.
# data_dir: streamd-data             # log, models and all state
# windows: {width_seconds: 3600}     # each is scored, then learned
# model: {name: tgn}                 # pair is quicker, and as good on some streams
# server: {host: 127.0.0.1, port: 8000}   # other hosts need api_keys
# retention: {max_age_seconds: null}      # older events leave the log
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledTopic:
    """The topic of the sample from which a mapping was guessed.

    broker: host:port, or several. sample: the records, in words, as "100 records of shop.clicks".
    """

    broker: str
    topic: str
    sample: str


def pasted_records(text: str, now_ms: int) -> list[Any]:
    """Parse records from pasted text: one JSON object, an array of them, or one a line.

    now_ms: the timestamp that they get, Unix milliseconds. Raises: SettingsError.
    """
    try:
        value = parsed(text.strip().encode())
        values = value if isinstance(value, list) else [value]
    except BadEvent:
        try:
            # Not one JSON value, so try one a line.
            values = [parsed(line.encode()) for line in text.splitlines() if line.strip()]
        except BadEvent as error:
            raise SettingsError(
                f"The sample is not JSON: {error}.", "paste one record, or name a file of records."
            ) from None
    if not values or not all(isinstance(v, dict) for v in values):
        raise SettingsError("The sample holds no JSON object.", "paste one record as it is.")
    return [
        FileRow(offset=n, value=msgspec.json.encode(v), timestamp=now_ms)
        for n, v in enumerate(values)
    ]


def settings_text(topic: SampledTopic, guessed: Guess) -> str:
    """Write the settings file as YAML with comments."""
    parts = [
        f"# Settings of streamd, by `streamd init` from {_line(topic.sample)}.\n\n",
        "# Where events come from. Passwords belong in variables or in kafka.client_file.\n",
        to_yaml({"kafka": {"bootstrap_servers": topic.broker}}),
    ]

    # Features come before the source that fills them.
    if "graph" in guessed.tree:
        parts += [
            "\n# Features of events.\n",
            to_yaml({"graph": guessed.tree["graph"]}),
        ]
    parts.append("\n")
    for source in guessed.sources:
        src, dst = (_line(path_text(source["fields"][end])) for end in ("src", "dst"))
        parts.append(f"# The prediction: for each {src}, which {dst} comes next.\n")
    parts.append(to_yaml({"sources": guessed.sources}))
    if guessed.doubts:
        parts.append("\n# Check these:\n")
        parts += [_comment(doubt) for doubt in guessed.doubts]
    return "".join([*parts, "\n", DEFAULTS])


def _comment(text: str) -> str:
    """Write a sentence as wrapped comments of the file."""
    lines = textwrap.wrap(_line(text), MAX_WIDTH, initial_indent="# - ", subsequent_indent="#   ")
    return "\n".join(lines) + "\n"


def _line(text: Any) -> str:
    """Write text from outside as one line of printable characters, which cannot end a comment."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def path_text(paths: str | list[str]) -> str:
    """A path as text, or several, of which the first with a value counts."""
    return paths if isinstance(paths, str) else " or ".join(paths)


def listed(paths: Sequence[str]) -> str:
    """Paths of fields as text for a question, comma separated."""
    return ", ".join(_line(path) for path in paths)

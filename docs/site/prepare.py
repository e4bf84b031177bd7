"""Writes what the documentation site is built of: `python docs/site/prepare.py FOLDER`.

The builder's settings, the pages of docs/ as they are, README, CONTRIBUTING and CHANGELOG beside
them, and references made of the code: of streamd as a library, of the REST API and of the commands.
"""

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import typer

from streamd.cli.main import app
from streamd.registry import Registry
from streamd.server.app import create_app
from streamd.server.state import ServerState
from streamd.settings.loading import load_settings
from streamd.telemetry.heartbeat import Heartbeat

ROOT = Path(__file__).parents[2]
TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages at the top of the repository -> their names in the site."""
LIBRARY = {
    "Schemas and settings": ["streamd.events.Schema", "streamd.settings.loading.ModelSettings"],
    "Graph and sampler": [
        "streamd.graph.BlockGraph",
        "streamd.graph.TemporalSampler",
        "streamd.eventlog.columns.EdgeColumns",
        "streamd.gpu.cache.FeatureCache",
    ],
    "Models": [
        "streamd.models.build_model",
        "streamd.models.LinkModel",
        "streamd.models.EdgeRows",
        "streamd.models.sampled_inputs",
        "streamd.models.link_loss",
    ],
    "A log": ["streamd.eventlog.reader.LogReader"],
    "A log as tables": ["streamd.open_log", "streamd.table.log_snapshot.LogSnapshot"],
}
"""Heading -> names that docs/library.md uses."""
CLIENT = """\
# Client reference

[From your app](../from-your-app.md) shows how to use it. Both clients have a method for each of
the calls: it takes the same arguments and returns the answer that is behind `Call`.

## Calls

::: streamd.client.calls
    options:
      show_root_toc_entry: false
      show_root_heading: false
      filters: ["!^_", "!^Call$", "!^[A-Z]+$"]

## Clients, answers and errors

::: streamd.client
    options:
      show_root_toc_entry: false
      show_root_heading: false
"""
METHODS = ("get", "post", "put", "delete")
LICENCE = "https://www.apache.org/licenses/LICENSE-2.0"


def main(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "site" / "zensical.toml", target)
    folder = target / "pages"
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("site", "__pycache__"))
    for path in folder.glob("*.md"):
        path.write_text(moved(path.read_text(), "../", ""))
    for source, name in TOP.items():
        (folder / name).write_text(moved((ROOT / source).read_text(), "", "docs/"))

    reference = folder / "reference"
    reference.mkdir()
    (reference / "library.md").write_text(library_page())
    (reference / "rest.md").write_text(rest_page(described()))
    (folder / "openapi.json").write_text(json.dumps(described(), indent=1))
    (reference / "client.md").write_text(CLIENT)
    (reference / "commands.md").write_text(commands_page(typer.main.get_command(app), "streamd"))


def moved(text: str, to_top: str, to_docs: str) -> str:
    """A page's text with links that lead where the pages lie in the site.

    to_top, to_docs: how the page's links write the top of the repository and docs/.
    """

    def led(match: re.Match[str]) -> str:
        link, anchor = match[1], match[2] or ""
        if link.startswith(to_top) and link.removeprefix(to_top) in TOP:
            return f"]({TOP[link.removeprefix(to_top)]}{anchor})"
        if link == f"{to_top}LICENSE":
            return f"]({LICENCE})"
        return f"]({link.removeprefix(to_docs)}{anchor})"

    # Code blocks stay as they are.
    parts = re.split(r"(^```.*?^```)", text, flags=re.M | re.S)
    parts[::2] = [re.sub(r"\]\(([^)#\s]+)(#[^)\s]*)?\)", led, part) for part in parts[::2]]
    return "".join(parts)


def library_page() -> str:
    """The library's names, whose docstrings the site's builder puts in."""
    parts = ["# Library reference\n\n[streamd as a library](../library.md) shows how they fit.\n"]
    for title, names in LIBRARY.items():
        parts.append(f"## {title}\n")
        parts += [f"::: {name}\n" for name in names]
    return "\n".join(parts)


def described() -> dict[str, Any]:
    """The OpenAPI description, by the server's own code on an empty directory."""
    with tempfile.TemporaryDirectory(prefix="streamd-docs-") as folder:
        settings = load_settings(None, {"data_dir": folder}, {})[0]
        state = ServerState(settings, Registry.of(settings), Heartbeat(Path(folder), "serve"))
        found: dict[str, Any] = create_app(state).openapi()
    return found


def rest_page(api: dict[str, Any]) -> str:
    """The REST API as Markdown: routes by tag, then the bodies."""
    parts = [
        "# REST reference\n",
        "From the server's own [OpenAPI description](../openapi.json). "
        "[REST API](../api.md) says what it means.\n",
    ]
    by_tag: dict[str, list[str]] = {}
    for path, item in api["paths"].items():
        for method in METHODS:
            if method in item:
                tag = (item[method].get("tags") or ["others"])[0]
                by_tag.setdefault(tag, []).append(operation(method, path, item[method], api))
    for tag, operations in by_tag.items():
        parts += [f"## {tag.capitalize()}\n", *operations]

    parts.append("## Bodies\n")
    for name, schema in api["components"]["schemas"].items():
        parts.append(f"### {name}\n")
        if text := schema.get("description"):
            parts.append(one_line(text) + "\n")
        parts.append(fields(schema))
    return "\n".join(parts)


def operation(method: str, path: str, told: dict[str, Any], api: dict[str, Any]) -> str:
    """One route: what it does, takes and answers."""
    parts = [f"### {method.upper()} {path}\n", one_line(told.get("description", "")) + "\n"]
    rows = [
        f"| `{p['name']}` | {p['in']} | {kind(p['schema'])} | {cell(p.get('description', ''))} |"
        for p in (resolved(p, api) for p in told.get("parameters", []))
    ]
    if rows:
        head = ["| parameter | in | type | meaning |", "| --- | --- | --- | --- |"]
        parts.append("\n".join([*head, *rows]) + "\n")
    if "requestBody" in told:
        parts.append(f"Body: {contents(told['requestBody'])}.\n")
    answers = [
        f"| {status} | {cell(answer.get('description', ''))} | {contents(answer)} |"
        for status, answer in sorted(told["responses"].items())
    ]
    parts.append("\n".join(["| status | meaning | body |", "| --- | --- | --- |", *answers]) + "\n")
    return "\n".join(parts)


def commands_page(command: Any, name: str) -> str:
    """Each command below `command` with its help, arguments and options, as `--help` shows them."""
    if commands := getattr(command, "commands", None):
        parts = [commands_page(one, f"{name} {word}") for word, one in commands.items()]
        head = "# Command reference\n\n[Commands](../commands.md) explains their use.\n"
        return "\n".join([head, *parts] if name == "streamd" else parts)
    rows = []
    for option in command.params:
        words = ", ".join(f"`{o}`" for o in [*option.opts, *option.secondary_opts])
        rows.append(f"| {words} | {cell(getattr(option, 'help', None) or '')} |")
    head = f"## {name}\n\n{one_line(command.help or '')}\n"
    table = ["| option | meaning |", "| --- | --- |", *rows] if rows else []
    return "\n".join([head, *table, ""])


def resolved(part: dict[str, Any], api: dict[str, Any]) -> dict[str, Any]:
    """A part, looked up where it is a reference."""
    if "$ref" not in part:
        return part
    found: Any = api
    for step in part["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    return dict(found)


def contents(told: dict[str, Any]) -> str:
    """What a body may be, with its media types."""
    content = told.get("content", {})
    return ", ".join(f"{kind(c.get('schema', {}))} as `{m}`" for m, c in content.items())


def fields(schema: dict[str, Any]) -> str:
    """The fields of a body as a table."""
    if not schema.get("properties"):
        return f"{kind(schema)}\n"
    needed = schema.get("required", [])
    rows = []
    for name, part in schema["properties"].items():
        default = "" if part.get("default") is None else f"`{json.dumps(part['default'])}`"
        cells = (f"`{name}`", kind(part), "yes" if name in needed else "", default)
        rows.append(f"| {' | '.join(cells)} | {cell(part.get('description', ''))} |")
    head = ["| field | type | needed | default | meaning |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*head, *rows]) + "\n"


def kind(schema: dict[str, Any]) -> str:
    """A type in words, with a link to it where it is a body of its own."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if parts := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(kind(part) for part in parts))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {kind(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def one_line(text: str) -> str:
    return " ".join(text.split())


def cell(text: str) -> str:
    return one_line(text).replace("|", "\\|")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

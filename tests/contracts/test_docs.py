"""What the docs say and what the product has are the same lists."""

import inspect
import re
from pathlib import Path

import prometheus_client
import pytest
import typer
from fastapi.routing import APIRoute

import streamd.errors
from streamd.cli import app
from streamd.graph.fact_columns import FACT_NAMES, FactColumn
from streamd.ingest.deadletter import REASONS
from streamd.models.architectures import ARCHITECTURES, COMMON
from streamd.settings import leaves, load_settings
from streamd.telemetry import metrics

ROOT = Path(__file__).parents[2]
DOCS = {p.name: p.read_text() for p in (ROOT / "docs").glob("*.md")}
README = (ROOT / "README.md").read_text()


def first_column(text):
    """The code spans that begin the rows of all tables."""
    return re.findall(r"^\| `([^`]+)`", text, re.M)


def test_every_setting_is_documented_with_its_default():
    s, _ = load_settings(environ={})
    rows = dict(re.findall(r"^\| `([^`]+)` \| `?(.*?)`? \|", DOCS["settings.md"], re.M))
    assert set(rows) == {".".join(p) for p in leaves()}
    for path in leaves():
        value = s
        for name in path:
            value = getattr(value, name)
        want = "" if value is None or value == () or value == {} else ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        assert rows[".".join(path)] == want, path


def test_every_model_is_documented_with_the_settings_it_uses():
    rows = dict(re.findall(r"^\| (\w+) \| (`.*?|nothing else) \|$", DOCS["settings.md"], re.M))
    assert {name: set(re.findall(r"`(\w+)`", text)) for name, text in rows.items()} == {
        name: row.settings for name, row in ARCHITECTURES.items()}
    common, = re.findall(r"^\| model \| uses, beside (.*?) \|$", DOCS["settings.md"], re.M)
    assert set(re.findall(r"`(\w+)`", common)) == COMMON


def test_every_fact_is_documented_in_its_place():
    section = DOCS["how-it-works.md"].split("### Facts\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.M)
    assert rows == [(name, column.words) for name, column in zip(FACT_NAMES, FactColumn, strict=True)]


def test_every_metric_is_documented_under_the_roles_that_export_it():
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", DOCS["metrics.md"], re.M | re.S))
    told = {name: set(roles.split(" and ")) for roles, text in sections.items() for name in first_column(text)}
    have = {}
    for role in metrics.OWNED:
        for family in metrics.exported_by(role).collect():
            if family.name.startswith("streamd_"):
                suffix = "_total" if family.type == "counter" else ""
                have.setdefault(family.name + suffix, set()).add(role)
    assert told == {name: {"every role"} if roles == set(metrics.OWNED) else roles for name, roles in have.items()}
    made = [m for m in vars(metrics).values() if isinstance(m, prometheus_client.metrics.MetricWrapperBase)]
    assert len(made) == len(have)


def test_every_error_and_reason_is_documented():
    have = {n for n, c in inspect.getmembers(streamd.errors, inspect.isclass) if issubclass(c, streamd.errors.StreamdError)}
    assert set(first_column(DOCS["errors.md"])) == have | set(REASONS)
    tree = streamd.errors.__doc__
    assert all(n in tree for n in have)


def commands():
    def walk(command, name):
        subs = getattr(command, "commands", None)
        if not subs:
            yield name, {o for p in command.params for o in p.opts if o.startswith("--")}
        for sub_name, sub in (subs or {}).items():
            yield from walk(sub, f"{name} {sub_name}")

    yield from walk(typer.main.get_command(app), "streamd")


def test_every_command_is_documented_with_its_options():
    text = DOCS["commands.md"]
    sections = dict(re.findall(r"^## `(streamd [^`]+)`\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    have = dict(commands())
    assert set(sections) == set(have)
    for name, options in have.items():
        for option in options - {"--help"}:
            assert f"`{option}`" in sections[name], f"{name} {option}"


def test_every_route_is_documented(tmp_path):
    from streamd.registry import Registry
    from streamd.server.app import create_app
    from streamd.server.engine import Engine
    from streamd.server.state import ServerState
    from streamd.telemetry.heartbeat import Heartbeat
    from tests.builders import settings

    s = settings(tmp_path)
    registry = Registry(s)
    engine = Engine(s, registry, Heartbeat(tmp_path, "serve"))
    made = create_app(ServerState(s, engine, registry))
    have = {f"{m} {path}" for path, item in made.openapi()["paths"].items() for m in map(str.upper, item)}
    have |= {f"GET {r.path}" for r in made.routes if isinstance(r, APIRoute) and not r.include_in_schema}
    assert set(first_column(DOCS["api.md"])) == have


@pytest.mark.parametrize("target", ["demo", "test", "contract", "slow", "bench", "lint"])
def test_make_targets_that_are_named_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)
    assert f"make {target}" in README + (ROOT / "CONTRIBUTING.md").read_text()


def test_links_between_documents_lead_somewhere():
    for name, text in {**DOCS, "../README.md": README}.items():
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            if not link.startswith("http"):
                assert ((ROOT / "docs" / name).parent / link).resolve().exists(), f"{name}: {link}"

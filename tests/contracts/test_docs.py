"""What the docs say and what the product has are the same lists."""

import importlib
import inspect
import re
from pathlib import Path

import prometheus_client
import pytest
import typer
from fastapi.routing import APIRoute

import streamd.errors
from streamd.cli.main import app
from streamd.graph.facts.columns import FACT_NAMES, NUM_FACTS, FactColumn
from streamd.graph.facts.groups import GROUPS
from streamd.ingest.dead_letters.sinks import REASONS
from streamd.models.architectures import ARCHITECTURES, COMMON
from streamd.models.inference.stored_weights import OLD_NUM_FACTS
from streamd.settings.loading import ModelSettings, leaves, load_settings
from streamd.telemetry import metrics, replica_metrics, score_metrics, trial_metrics

ROOT = Path(__file__).parents[2]
DOCS = {p.name: p.read_text() for p in (ROOT / "docs").glob("*.md")}
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
PAGES = {"README.md": README, "CONTRIBUTING.md": CONTRIBUTING, "CHANGELOG.md": CHANGELOG,
         **{f"docs/{name}": text for name, text in DOCS.items()}}
NUMBERS = {"seven": 7, "eight": 8, "nine": 9, "ten": 10}
ORDINALS = {"eighth": 8, "ninth": 9, "tenth": 10, "eleventh": 11}
each_page = pytest.mark.parametrize("page", PAGES)


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
    common, = re.findall(r"^\| model \| uses, besides (.*?) \|$", DOCS["settings.md"], re.M)
    assert set(re.findall(r"`(\w+)`", common)) == COMMON


def test_every_model_is_named_in_each_text_that_lists_the_models():
    texts = {
        "description of model.name": ModelSettings.model_fields["name"].description,
        "docs/settings.md": re.search(r"^\| `model.name` \|.*$", DOCS["settings.md"], re.M)[0],
        "docs/how-it-works.md": DOCS["how-it-works.md"].split("## The model\n")[1].split("\n## ")[0],
        "README.md": re.search(r"model \((`.*?`)\)", README)[1],
    }
    missing = {text: [name for name in ARCHITECTURES if not re.search(rf"\b{name}\b", words)] for text, words in texts.items()}
    assert not any(missing.values()), missing


def test_every_fact_is_documented_in_its_place():
    section = DOCS["how-it-works.md"].split("### Facts\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.M)
    assert rows == [(name, column.words) for name, column in zip(FACT_NAMES, FactColumn, strict=True)]


def test_texts_that_count_facts_and_their_groups_count_those_there_are():
    """Figures of older releases may have as many as those knew."""
    counted = {page: re.findall(r"\b(\d+) (?:of the (\d+) )?(?:pair )?\[?facts\b", text)
               for page, text in PAGES.items() if page != "CHANGELOG.md"}
    found = [(page, int(some), int(every or NUM_FACTS)) for page, numbers in counted.items() for some, every in numbers]
    assert {page for page, *_ in found} >= {"README.md", "docs/accuracy.md"}
    assert [one for one in found if one[1] not in (*OLD_NUM_FACTS, NUM_FACTS) or one[2] != NUM_FACTS] == []
    groups, last = re.search(r"are in (\w+) groups; a (\w+), `graph`", DOCS["api.md"]).groups()
    assert (NUMBERS[groups], ORDINALS[last]) == (len(GROUPS), len(GROUPS) + 1)
    scores = re.findall(r"Shapley shares take (\d+)|over all (\d+) sets of groups", DOCS["api.md"])
    assert {int(a or b) for a, b in scores} == {2 ** (len(GROUPS) + 1)}


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
    made = [m for module in (metrics, replica_metrics, score_metrics, trial_metrics) for m in vars(module).values()
            if isinstance(m, prometheus_client.metrics.MetricWrapperBase)]
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
            yield name, command
        for sub_name, sub in (subs or {}).items():
            yield from walk(sub, f"{name} {sub_name}")

    return dict(walk(typer.main.get_command(app), "streamd"))


def test_the_table_of_commands_has_every_command():
    rows = [name for name in first_column(DOCS["commands.md"]) if name.startswith("streamd ")]
    assert sorted(rows) == sorted(commands())


@pytest.mark.parametrize("name", commands())
def test_help_explains_a_command_and_each_of_its_options(name):
    command = commands()[name]
    assert command.help
    assert [p.name for p in command.params if any(o.startswith("--") for o in p.opts) and not p.help] == []


def test_every_route_is_documented(tmp_path):
    from streamd.registry import Registry
    from streamd.server import operator_routes
    from streamd.server.app import create_app
    from streamd.server.state import ServerState
    from streamd.telemetry.heartbeat import Heartbeat
    from tests.builders import settings

    s = settings(tmp_path)
    made = create_app(ServerState(s, Registry.of(s), Heartbeat(tmp_path, "serve")))
    have = {f"{m} {path}" for path, item in made.openapi()["paths"].items() for m in map(str.upper, item)}
    have |= {f"GET {r.path.replace(':path', '')}" for r in operator_routes.router.routes if isinstance(r, APIRoute) and not r.include_in_schema}
    assert set(first_column(DOCS["api.md"])) == have


@pytest.mark.parametrize("target", ["demo", "test", "contract", "slow", "bench", "lint", "docs", "helm", "wheel"])
def test_make_targets_that_are_named_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)
    assert f"make {target}" in README + CONTRIBUTING


@each_page
def test_links_between_documents_lead_somewhere(page):
    for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", PAGES[page]):
        if link.startswith("http"):
            continue
        target = (ROOT / page).parent / link if link else ROOT / page
        assert target.resolve().exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
            assert anchor in [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings], f"{link}#{anchor}"


@each_page
def test_every_file_and_folder_that_is_named_exists(page):
    named = re.findall(r"(?<![\w/.-])((?:streamd|tests)/[\w./-]*\w)", PAGES[page])
    named += re.findall(r"(?<![\w/.-])((?:deploy|k8s|docs)/[\w./-]*\.(?:md|yaml|json|png))", PAGES[page])
    assert [path for path in named if not (ROOT / path).exists()] == []


@each_page
def test_every_module_file_that_is_named_by_its_last_name_exists(page):
    have = {path.name for room in ("streamd", "tests", "docs/examples") for path in (ROOT / room).rglob("*.py")}
    beside = {"pyg_tgn.py", "baselines.py"}  # of the peers that benchmarks compare with
    assert set(re.findall(r"(?<![\w/])(\w+\.py)\b", PAGES[page])) <= have | beside


@each_page
def test_every_dotted_name_and_import_of_streamd_exists(page):
    dotted = [name for name in re.findall(r"(?<![\w/.-])(streamd(?:\.\w+)+)", PAGES[page]) if name != "streamd.yaml"]
    for module, names in re.findall(r"^from (streamd[\w.]*) import (.+)$", PAGES[page], re.M):
        dotted += [f"{module}.{name}" for name in names.split(", ")]
    assert [name for name in dotted if not exists(name)] == []


def exists(dotted):
    """Whether a module, or an attribute of one, is called so."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def recipes():
    """Of each "How to add": its title, and (file, names that it must hold) of each row."""
    part = CONTRIBUTING.split("## How to add\n")[1].split("\n## ")[0]
    for title, text in re.findall(r"^### ([^\n]+)\n(.*?)(?=^### |\Z)", part, re.M | re.S):
        rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", text, re.M)
        yield title, [(file, re.findall(r"`(\w+)`", what)) for file, what in rows]


def test_every_way_to_add_something_is_told():
    told = {title.split()[-1] for title, rows in recipes() if rows}
    assert told == {"model", "strategy", "source", "sink", "metric", "setting", "route"}


@pytest.mark.parametrize(("title", "rows"), list(recipes()))
def test_the_names_in_a_way_to_add_something_are_in_its_files(title, rows):
    for file, names in rows:
        text = (ROOT / file).read_text()
        assert [name for name in names if not re.search(rf"\b{name}\b", text)] == [], f"{title}: {file}"


@each_page
def test_lines_of_prose_have_at_most_140_columns(page):
    prose = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.M | re.S)
    assert [line for line in prose.splitlines() if len(line) > 140 and not line.startswith("|")] == []

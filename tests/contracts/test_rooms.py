"""DESIGN: a room imports only rooms above it, plus the shared modules; training and server never see each other."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import streamd
from streamd.settings.loading import ModelName

ROOT = Path(streamd.__file__).parent
ROOMS = ("ingest", "segments", "store", "graph", "ranks", "gpu", "windows", "registry", "models", "training", "server",
         "scoring", "evaluation", "replica", "exchange")
SHARED = {"settings", "settings_tree", "settings_branch", "settings_server", "settings_sets", "settings_sources", "settings_lines", "settings_log", "settings_schema", "schema", "schema_change", "errors", "clock", "events", "telemetry", "storage", "tensors", "processes",
          "roles"}
TOP = {"__init__", "__main__", "cli", "cli_backtest", "cli_changelog", "cli_deadletter", "cli_init", "cli_lead", "cli_models", "cli_options", "cli_sources", "cli_store", "cli_tfgnn", "cli_tguf", "daemon", "daemon_log", "doctor", "health", "maintenance", "role_lock", "supervisor", "torchrun"}
DEMO_ONLY = {"cli"}
APART = {"client"}
"""Imports nothing of streamd, and is imported by nothing of it: it is for other programs."""


def imports(path):
    """Top-level names inside streamd that a file imports, at any depth of its code."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "streamd":
            names = [node.module + "." + a.name for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.split(".")[0] == "streamd"]
        for name in names:
            parts = name.split(".")
            if len(parts) > 1 and parts[1] != "__version__":
                yield parts[1]


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_rooms_above_it(path):
    parts = path.relative_to(ROOT).parts
    room = parts[0] if len(parts) > 1 else path.stem
    for target in imports(path):
        if room in APART or target in APART:
            assert room == target, f"{room} imports {target}"
        elif room in ROOMS:
            allowed = SHARED | set(ROOMS[: ROOMS.index(room) + 1])
            if room == "server":
                allowed -= {"training"}
            assert target in allowed, f"{room} imports {target}"
        elif room in SHARED:
            assert target in SHARED, f"{room} imports {target}"
        elif room not in TOP:
            assert room == "demo"
        if target == "demo":
            assert room in DEMO_ONLY | {"demo"}
        if target == "daemon":
            assert room == "cli"


def test_the_server_loads_no_code_of_training():
    code = "import sys, streamd.server.app; print([m for m in sys.modules if m.startswith('streamd.training')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_every_folder_is_a_known_room():
    folders = {p.name for p in ROOT.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert folders == set(ROOMS) | APART | {"telemetry", "demo"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_short_and_say_what_they_are(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    assert path.name == "__main__.py" or ast.get_docstring(ast.parse(text))


def test_a_models_name_is_compared_nowhere():
    """`streamd.models.architectures` is asked instead; the table itself is a dict, which compares nothing here."""
    names = set(get_args(ModelName))
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare | ast.MatchValue):
                named = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
                assert not named & names, f"{path}:{node.lineno}"


def test_nothing_is_unpickled_or_executed():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in ("eval", "exec", "torch.load", "np.load") and not name.startswith(("pickle", "marshal")), path

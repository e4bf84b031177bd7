"""DESIGN: a room imports only rooms before it, plus the ground; no two rooms import each other; training and server never see each other."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import streamd
from streamd.settings.loading import ModelName

ROOT = Path(streamd.__file__).parent
GROUND = {"init_process", "errors", "clock", "iso_times", "number_texts", "events", "schema", "schema_change", "storage", "tensors", "processes", "roles"}
"""The modules directly in `streamd/`: types and system calls that all rooms use."""
SHARED = GROUND | {"settings", "telemetry"}
ROOMS = ("eventlog", "graph", "ranks", "gpu", "decode", "ingest", "windows", "registry", "models", "serving", "store", "scoring", "trials", "training",
         "server", "replica", "evaluation", "exchange", "table", "tfgnn", "daemon", "demo", "cli")
"""In the order in which they may import."""
APART = {"client"}
"""Imports nothing of streamd, and is imported by nothing of it: it is for other programs."""
UNSEEN = {"training": {"server"}, "server": {"training"}}
"""Rooms that must not see each other, whatever the order says."""
ONLY_BY_CLI = {"daemon", "demo"}


def imports(path):
    """Modules and names inside streamd that a file imports, at any depth of its code, without `streamd.`."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "streamd":
            names = [node.module + "." + a.name for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.split(".")[0] == "streamd"]
        yield from (name.removeprefix("streamd.") for name in names if name not in ("streamd", "streamd.__version__"))


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_rooms_before_it(path):
    parts = path.relative_to(ROOT).parts
    room = parts[0] if len(parts) > 1 else path.stem
    for target in {name.split(".")[0] for name in imports(path)}:
        if room in APART or target in APART:
            assert room == target, f"{room} imports {target}"
        elif room in ROOMS:
            allowed = (SHARED | set(ROOMS[: ROOMS.index(room) + 1])) - UNSEEN.get(room, set())
            assert target in allowed, f"{room} imports {target}"
            assert target not in ONLY_BY_CLI or room in (target, "cli"), f"{room} imports {target}"
        elif room in SHARED:
            assert target in SHARED, f"{room} imports {target}"
        else:
            assert (room, target) in (("__main__", "init_process"), ("__main__", "cli"), ("__init__", "table"))


@pytest.mark.parametrize("room", sorted(p.name for p in ROOT.iterdir() if (p / "__init__.py").exists()))
def test_the_folders_in_a_room_import_each_other_in_one_direction_only(room):
    folders = {p.name for p in (ROOT / room).iterdir() if (p / "__init__.py").exists()}
    graph = {folder: {name.split(".")[1] for path in (ROOT / room / folder).rglob("*.py") for name in imports(path)
                      if name.startswith(f"{room}.")} & folders - {folder} for folder in folders}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_the_server_loads_no_code_of_training():
    code = "import sys, streamd.server.app; print([m for m in sys.modules if m.startswith('streamd.training')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_every_folder_is_a_known_room_and_every_module_outside_one_is_ground():
    folders = {p.name for p in ROOT.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert folders == set(ROOMS) | APART | (SHARED - GROUND)
    assert {p.stem for p in ROOT.glob("*.py")} == GROUND | {"__init__", "__main__"}


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

"""docs/from-your-app.md and docs/examples/clients: each example queries a running server, unchanged."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import streamd.client.errors
from streamd.client import Client
from streamd.server.http.event_forwarding import Forwarder
from tests.builders import settings, stream, write_log
from tests.server.world import World, listening

PAGE = (Path(__file__).parents[2] / "docs" / "from-your-app.md").read_text()
BLOCKS = [(kind or "sh", code) for kind, code in re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.M | re.S)]
CLIENTS = Path(__file__).parents[2] / "docs" / "examples" / "clients"
KEY = "KEY"
OURS = [(kind, code) for kind, code in BLOCKS if not code.startswith("pip ")]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A server whose nodes are those of the page; what is sent to Kafka is at once in no log."""
    path = tmp_path_factory.mktemp("page")
    write_log(path, *stream(300))
    world = World.of(path, settings(path, server__api_keys=[KEY], stream__time_unit="ms")).start()
    patch = pytest.MonkeyPatch()
    patch.setattr(Forwarder, "produce", lambda self, events: [(3, 1041 + i) for i in range(len(events))])
    # Nothing reads Kafka here: the place that events are said to be at counts as read. tests/server/test_own_writes.py
    # reads through a real daemon.
    patch.setattr("streamd.server.engine.conditions.RecordToken.is_in", lambda token, state: True)
    with listening(world) as (host, port):
        yield f"{host}:{port}"
    patch.undo()
    world.stop()


def run(kind, code, address, python=sys.executable):
    code = code.replace("localhost:8000", address)
    if kind == "javascript" and not shutil.which("node"):
        pytest.skip("node is not installed")
    command = {"sh": ["bash", "-euo", "pipefail", "-c", code], "python": [python, "-c", code],
               "javascript": ["node", "--input-type=module", "-e", code]}[kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("kind", "code"), OURS, ids=[f"{kind} {n}" for n, (kind, _) in enumerate(OURS)])
def test_an_example_is_answered(address, kind, code):
    said = run(kind, code, address)
    # Each asks for something that only the server knows.
    assert re.search(r'"known"|known=|True|False|-?\d\.\d', said), said
    assert "about:blank" not in said and '"error"' not in said


@pytest.mark.contract
@pytest.mark.parametrize("client", ["triton", "kserve"])
def test_an_example_of_a_client_of_others_is_answered(address, client):
    code = (CLIENTS / f"{client}_client.py").read_text()
    assert re.search(r"\[\[.*\d", run("python", code, address, f"{sys.prefix}-contract-{client}/bin/python"))


def test_the_page_has_every_method_and_error():
    told = PAGE.split("### Sending events")[0]
    rows = re.findall(r"^\| ([\w, ]+) \| ", told, re.M)
    methods = {n for n in vars(Client) if not n.startswith("_")} - {"send", "close"}
    assert {m for row in rows for m in row.split(", ")} - {"method"} == methods
    rows = re.findall(r"^\| (\w+) \| ", PAGE.split("### When something fails")[1], re.M)
    errors = {n for n, e in vars(streamd.client.errors).items() if isinstance(e, type)}
    assert set(rows) - {"error"} == errors - {"ClientError"}
    assert all(name in streamd.client.errors.__doc__ and name in streamd.client.__all__ for name in errors)

"""A server of a TGN on a CPU never loads torch; a version that needs it does."""

import json
import subprocess
import sys

from tests.server.recorded import TGAT, TGN, make_log, publish

SERVE = """
import json, sys, time
from pathlib import Path

from fastapi.testclient import TestClient

from streamd import cli, daemon
from streamd.registry import Registry
from streamd.server.app import create_app
from streamd.server.listening import web_config
from streamd.server.state import ServerState
from streamd.telemetry.heartbeat import Heartbeat
from streamd.telemetry.logs import configure_logs
from tests.builders import settings

configure_logs("error", "json", "serve")
path = Path(sys.argv[1])
s = settings(path, **json.loads(sys.argv[2]))
state = ServerState(s, Registry.of(s), Heartbeat(path, "serve"))
engine = state.engine
web_config(state)

def asked(client):
    score = {"src": "u:3", "dst": ["i:0", "i:1", "nobody"]}
    bodies = {"/v1/score": score, "/v1/recommend": {"src": "u:3", "exact": True}, "/v1/labels": {"nodes": ["u:3"]},
              "/v1/embeddings": {"nodes": ["u:3"]}, "/v1/score/batch": {"requests": [score, score | {"time": 10**12}]}}
    return {path: client.post(path, json=body).status_code for path, body in bodies.items()}

with TestClient(create_app(state), "http://localhost") as client:
    for line in sys.stdin:
        while not (engine.status.ready and engine.status.version == line.strip()):
            time.sleep(0.01)
        said = {"asked": asked(client), "memory": engine.status.memory_edge > 300,
                "loaded": [name for name in ("torch", "kafka", "pyarrow") if name in sys.modules]}
        print(json.dumps(said), flush=True)
"""


def test_torch_is_loaded_by_a_version_that_needs_it_and_by_no_other(tmp_path):
    make_log(tmp_path)
    version = publish(tmp_path, TGN, 300)
    arguments = [sys.executable, "-c", SERVE, str(tmp_path), json.dumps(TGN)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        def when_serving(version):
            print(version, file=server.stdin, flush=True)
            return json.loads(server.stdout.readline())

        told = when_serving(version)
        assert told["loaded"] == [] and told["memory"]
        assert told["asked"] == {"/v1/score": 200, "/v1/recommend": 200, "/v1/labels": 200, "/v1/embeddings": 200, "/v1/score/batch": 200}

        # The next one is of an architecture that only torch has.
        told = when_serving(publish(tmp_path, TGAT, 400))
        assert told["loaded"] == ["torch"] and told["asked"]["/v1/score"] == 200
        server.stdin.close()
        assert server.wait(60) == 0

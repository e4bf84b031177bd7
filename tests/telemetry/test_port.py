import http.client
import json
import re
import socket
import urllib.error
import urllib.request

import pytest

from streamd.errors import SettingsError
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat
from streamd.telemetry.port import open_port


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def get(port, path, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_role_tells_whether_its_loop_turns_and_its_metrics_to_those_with_a_key(tmp_path, port, monkeypatch):
    beat = Heartbeat(tmp_path, "train")
    open_port(port, "127.0.0.1", beat, lambda key: key == "sesame")
    status, body = get(port, "/livez")
    assert status == 200 and "starting" in json.loads(body)["why"]
    beat.touch("learning")
    assert "learning" in get(port, "/livez")[1]
    monkeypatch.setattr("streamd.telemetry.heartbeat.STALLED_SECONDS", -1)
    status, body = get(port, "/livez")
    assert status == 503 and not json.loads(body)["alive"] and re.search(r"last turn was \d\.\d s ago", json.loads(body)["why"])
    assert get(port, "/metrics")[0] == get(port, "/metrics", Authorization="Bearer wrong")[0] == 401
    assert "is needed" in get(port, "/metrics")[1] and "is wrong" in get(port, "/metrics", Authorization="Bearer wrong")[1]
    metrics.trained_until.set(1234)
    assert "streamd_trained_until_timestamp_seconds 1234.0" in get(port, "/metrics", Authorization="Bearer sesame")[1]
    assert get(port, "/metrics", **{"X-API-Key": "sesame"})[0] == 200 and get(port, "/other")[0] == 404
    with pytest.raises(SettingsError, match="telemetry.train_port"):
        open_port(port, "127.0.0.1", beat, lambda key: True)


def test_port_0_opens_nothing(tmp_path):
    open_port(0, "127.0.0.1", Heartbeat(tmp_path, "train"), lambda key: True)


def test_a_head_is_answered_as_a_get_without_its_body(tmp_path, port, monkeypatch):
    open_port(port, "127.0.0.1", Heartbeat(tmp_path, "ingest"), lambda key: key == "sesame")
    for path, headers, status in (("/livez", {}, 200), ("/metrics", {"X-API-Key": "sesame"}, 200), ("/metrics", {}, 401), ("/other", {}, 404)):
        answers = []
        for method in ("HEAD", "GET"):
            line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            line.request(method, path, headers=headers)
            with line.getresponse() as answer:
                answers.append((answer.status, answer.getheader("content-type"), answer.read(), int(answer.getheader("content-length"))))
            line.close()
        head, got = answers
        assert head[:3] == (status, got[1], b"") and got[0] == status and got[3] == len(got[2]) > 0
        assert path == "/metrics" or head[3] == got[3]
    monkeypatch.setattr("streamd.telemetry.heartbeat.STALLED_SECONDS", -1)
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    line.request("HEAD", "/livez")
    assert line.getresponse().status == 503
    line.close()

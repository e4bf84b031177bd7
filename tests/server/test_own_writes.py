"""A client sends events by REST to a daemon, and asks at once with the places that it was told."""

import json
import urllib.request

from streamd.demo.broker import free_port
from streamd.demo.standin import StandIn
from tests.crash.daemons import Daemon, wait


def call(daemon, path, body, **headers):
    request = urllib.request.Request(
        f"http://127.0.0.1:{daemon.settings.server.port}{path}", json.dumps(body).encode(),
        {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer), dict(answer.headers)


def test_a_client_reads_what_it_wrote_through_kafka_and_ingest(tmp_path):
    broker = StandIn()
    broker.create_topic("events", 4)
    daemon = Daemon(
        tmp_path / "data", broker.bootstrap_servers, "events", kafka__client=broker.client, bootstrap__max_events=0,
        telemetry__ingest_port=free_port(), telemetry__train_port=free_port())
    daemon.start()
    try:
        wait(daemon.is_ready, "it answers", 120)
        for turn in range(5):
            sources = [f"u:{turn}-{i}" for i in range(8)]
            events = [{"src": src, "dst": "i:1", "time": 1_000 + turn} for src in sources]
            told, _ = call(daemon, "/v1/events", {"events": events})
            asked = {"requests": [{"src": src, "dst": ["i:1"]} for src in sources]}
            answers, headers = call(daemon, "/v1/score/batch", asked, streamd_after=told["after"])
            assert [a["known"] for a in answers] == [True] * 8, "each of its events is in"
            again, _ = call(daemon, "/v1/score", asked["requests"][0], streamd_after=headers["streamd-position"])
            assert again["as_of"]["last_edge"] >= 8 * turn + 7

        # All is in, so the answer is young.
        def lag():
            return float(call(daemon, "/v1/score", asked["requests"][0])[1].get("streamd-lag-seconds", "inf"))

        wait(lambda: lag() < 2, "answers are young")
        assert call(daemon, "/v1/score", asked["requests"][0], streamd_max_lag="30")[0]["known"]
        assert daemon.stop() == 0, daemon.output()[-3000:]
    finally:
        if daemon.process.poll() is None:
            daemon.kill()
        broker.close()

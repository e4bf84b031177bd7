import gzip
import platform

import torch
from fastapi.testclient import TestClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from streamd import __version__
from streamd.server.app import create_app
from streamd.server.engine.freshness import RATE_SECONDS, EventRate, Freshness
from streamd.server.engine.status import EngineState
from streamd.telemetry import metrics
from tests.builders import settings
from tests.server.world import World


def test_the_rate_of_events_is_that_of_the_last_seconds():
    rate = EventRate()
    assert rate.per_second == 0
    for step in range(6000):
        rate.note(step / 100, step if step < 3000 else 3000 + 5 * (step - 3000))
        if step == 2999:
            assert rate.per_second == 100
    assert rate.per_second == 500, "what was before is forgotten"
    for step in range(RATE_SECONDS + 1):
        rate.note(60 + step, 18_000)
    assert rate.per_second == 0


def test_the_rate_does_not_depend_on_who_asks_how_often(tmp_path):
    state = World.of(tmp_path, settings(tmp_path)).state
    rate = EventRate()
    for second in range(5):
        rate.note(second, 30 * second)
        state.engine.status.edge, state.engine.status.events_per_second = 30 * second, rate.per_second
        assert {state.page.content()["events_per_second"] for _ in range(40 * second)} <= {30.0}
    assert state.page.content()["events_per_second"] == 30


def observed():
    return {s.name.rsplit("_", 1)[1]: s.value for s in next(iter(metrics.event_to_answer_seconds.collect())).samples
            if not s.name.endswith("bucket")}


def test_the_time_to_an_answer_is_from_a_commit_until_its_events_are_shown():
    """
    commits at   10.0 (edges to 100, before the server was ready)   20.0 (to 150)   21.0 (no edges)   22.0 (to 300)
    shown at                                                       20.5 to 150                       25.0 to 299, 26.0 to 300
    """
    freshness, before = Freshness(), observed()
    freshness.notice(100, 10.0, ready=False)
    freshness.measure(100, 19.0)
    freshness.notice(150, 20.0, ready=True)
    freshness.measure(100, 20.1)
    assert observed()["count"] == before["count"]
    freshness.measure(150, 20.5)
    freshness.notice(150, 21.0, ready=True)
    freshness.notice(300, 22.0, ready=True)
    freshness.measure(299, 25.0)
    freshness.measure(300, 26.0)
    after = observed()
    assert after["count"] - before["count"] == 2 and abs(after["sum"] - before["sum"] - 4.5) < 1e-6


def test_metrics_are_told_in_the_form_that_was_asked_for(tmp_path):
    state = World.of(tmp_path, settings(tmp_path)).state
    client = TestClient(create_app(state), "http://localhost")
    metrics.export_build_info()

    def get(accept, encoding="identity"):
        return client.get("/metrics", headers={"accept": accept, "accept-encoding": encoding})

    plain, opened = get("text/plain"), get("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert plain.headers["content-type"].startswith("text/plain") and "# EOF" not in plain.text
    assert opened.headers["content-type"].startswith("application/openmetrics-text")
    families = {f.name: f.samples for f in text_string_to_metric_families(opened.text)}
    build, = families["streamd_build_info"]
    assert build.labels == {"version": __version__, "python": platform.python_version(), "torch": torch.__version__}
    assert families["streamd_ready"][0].value == 0
    state.engine.status.state = EngineState.READY
    assert "streamd_ready 1.0" in get("*/*").text
    packed = get("*/*", "gzip")
    assert packed.headers["content-encoding"] == "gzip" and "streamd_ready 1.0" in packed.text
    assert len(gzip.compress(packed.content)) < len(packed.content)

"""Before it is ready, a server answers requests of its own, so that nobody waits for what is slow the first time."""

import pytest

from streamd.eventlog.writer import LogWriter
from streamd.server.engine import answerer
from streamd.server.engine.answerer import Answerer
from streamd.server.engine.warm_up import UNKNOWN_KEY, warm_up_requests
from streamd.serving.requests import Recommend, Score
from streamd.telemetry import metrics
from tests.builders import HOUR, stream, write_log
from tests.readings import reading
from tests.server.world import SCHEMA, World, ask, wait


@pytest.fixture
def computed(monkeypatch):
    """Requests of each pass, and whether the server was ready then."""
    passes = []
    whole = Answerer.compute

    def noted(self, follower, requests):
        passes.append((self._status.ready, requests))
        return whole(self, follower, requests)

    monkeypatch.setattr(Answerer, "compute", noted)
    return passes


def test_the_champion_answers_one_request_of_each_kind_before_the_server_is_ready(tmp_path, computed):
    write_log(tmp_path, *stream(300), SCHEMA, watermark=100 * HOUR)
    world = World(tmp_path, model__name="tgn")
    world.train(1)
    recalls = reading(metrics.recommend_recall, "_count")
    world.start()
    ready, requests = computed[0]
    assert not ready and world.engine.status.version == world.registry.champion()
    assert {type(r).__name__ for r in requests} == {"Score", "Recommend", "Similar", "Embedding", "Label", "Explain"}
    assert all(r.src.startswith("n:") or r.new for r in requests if isinstance(r, Score | Recommend))
    assert [r.src for r in requests if isinstance(r, Score | Recommend) and r.new] == [UNKNOWN_KEY] * 2
    assert max(r.time_us or 0 for r in requests if isinstance(r, Score)) > 100 * HOUR, "a chunk is closed by it"
    assert world.engine.status.answered == 0 and reading(metrics.recommend_recall, "_count") == recalls
    world.stop()


def test_a_log_without_an_event_is_warmed_up_with_a_node_that_nobody_knows(tmp_path, computed):
    LogWriter(tmp_path, SCHEMA).close()
    world = World(tmp_path).start()
    assert computed[0][1][0] == Score(UNKNOWN_KEY, (UNKNOWN_KEY,))
    world.stop()


def test_nodes_that_were_deleted_are_not_asked_for(tmp_path):
    write_log(tmp_path, *stream(20), SCHEMA)
    world = World(tmp_path).start()
    view = world.engine._view
    view.log.keys[:] = [None] * len(view.log.keys)
    assert warm_up_requests(view)[0] == Score(UNKNOWN_KEY, (UNKNOWN_KEY,) * 20)
    world.stop()


def test_a_warm_up_that_fails_is_logged_and_the_server_becomes_ready(tmp_path, monkeypatch):
    def fails(*_):
        raise ValueError("a kernel that does not compile")

    write_log(tmp_path, *stream(20), SCHEMA)
    world = World(tmp_path)
    monkeypatch.setattr(answerer, "answers_of", fails)
    world.start()
    monkeypatch.undo()
    wait(lambda: world.engine.status.ready)
    assert ask(world)["as_of"]["version"] == "rule" and not world.failures
    world.stop()

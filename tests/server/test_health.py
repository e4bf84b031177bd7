from streamd.registry import Registry
from tests.builders import HOUR, stream, write_log
from tests.server.test_server import SCHEMA, World, wait


def test_health_says_why(tmp_path):
    waiting = World(tmp_path)
    waiting.run()
    assert waiting.client.get("/livez").status_code == 200
    ready = waiting.client.get("/readyz")
    assert ready.status_code == 503 and "ingest" in ready.json()["why"]
    assert waiting.client.post("/v1/score", json={"src": 1, "dst": [2]}).status_code == 503
    waiting.engine.status.beat -= 100
    waiting.stop()
    waiting.engine.status.beat -= 100
    assert waiting.client.get("/livez").status_code == 503


def test_an_error_nobody_foresaw_while_a_version_is_loaded_ends_the_server_rather_than_its_answers(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(500), SCHEMA, watermark=100 * HOUR)
    world = World(tmp_path)
    ended = []
    world.engine._on_failure = lambda: ended.append(True)
    monkeypatch.setattr(Registry, "load", lambda self, name: {}["nothing"])
    world.train(2)
    world.run()
    wait(lambda: ended)
    assert not world.engine.status.ready and "the engine failed" in world.client.get("/readyz").json()["why"]
    world.stop()

"""How far the server is with its graph and memory, until it answers."""

from streamd.serving import following_graph as server_graph
from streamd.serving.following_graph import ServerGraph
from streamd.serving.loaded_version import LoadedVersion
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import read_beat
from tests.builders import HOUR, stream, write_log
from tests.server.world import SCHEMA, World, wait


def ratio():
    return metrics.MODEL.get_sample_value("streamd_rebuild_ratio")


def held_after(monkeypatch, slices):
    """Let the server take in slices of 40 edges, and no more of them than the first number in the list."""
    follow = ServerGraph.follow

    def held(self, **how):
        if not slices[0]:
            return 0, False
        slices[0] -= 1
        return follow(self, **how)

    monkeypatch.setattr(server_graph, "SLICE_EDGES", 40)
    monkeypatch.setattr(ServerGraph, "follow", held)


def test_while_it_rebuilds_it_says_how_far_it_is_and_how_long_it_takes(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(400), SCHEMA)
    slices, world = [1], World(tmp_path)
    held_after(monkeypatch, slices)
    world.run()

    # A rate needs two readings that differ: a quick machine takes in three slices at once.
    wait(lambda: "10 %" in world.client.get("/readyz").json()["why"])
    slices[0] = 2
    wait(lambda: "30 %" in world.client.get("/readyz").json()["why"])
    said = world.client.get("/readyz")
    assert said.status_code == 503 and said.json()["share"] == 0.3 and ratio() == 0.3
    assert "reading the log, 30 %, 120 of 400 edges" in said.json()["why"]
    wait(lambda: world.client.get("/readyz").json()["seconds_left"] is not None)
    wait(lambda: read_beat(tmp_path, "serve").detail.get("share") == 0.3)
    shares = [0.3]
    slices[0] = 99
    while (said := world.client.get("/readyz")).status_code == 503:
        shares.append(said.json()["share"])
    assert shares == sorted(shares) and said.json() == {"ready": True, "why": "answering"} and ratio() == 1
    wait(lambda: "share" not in read_beat(tmp_path, "serve").detail)
    world.stop()


def test_carrying_memory_is_part_of_the_share_from_the_start(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(400, hours=8), SCHEMA, watermark=100 * HOUR)
    world = World(tmp_path)
    world.train(2)
    behind = 400 - world.registry.manifest(world.registry.champion()).edge
    slices = [3]
    held_after(monkeypatch, slices)
    monkeypatch.setattr(LoadedVersion, "follow", lambda self, *_: 1)
    world.run()
    wait(lambda: f"120 of {400 + behind} edges" in world.client.get("/readyz").json()["why"])
    slices[0] = 99
    wait(lambda: f"400 of {400 + behind} edges" in world.client.get("/readyz").json()["why"])
    assert 0.5 < world.client.get("/readyz").json()["share"] == int(1000 * 400 / (400 + behind)) / 1000 < 1
    world.stop()

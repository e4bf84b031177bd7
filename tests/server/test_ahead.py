"""A version may come before the events that it was made of, on a replica, and before other machines know of it, beside the trainer."""

import shutil

from streamd.eventlog.writer import LogWriter
from streamd.events import Progress
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import HELD_STATE, Heartbeat
from tests.builders import HOUR, batch, stream, write_log
from tests.readings import reading
from tests.server.world import SCHEMA, World, ask, wait


def test_readiness_and_metrics_of_a_replica_say_that_its_follower_refused(tmp_path):
    replica = World(tmp_path, log__name="t", log__member="replica")
    assert "follow_refused" not in replica.client.get("/readyz").json()
    Heartbeat(tmp_path, "follow").touch("refused", why="another commit 7")
    assert replica.client.get("/readyz").json()["follow_refused"] == "another commit 7"
    assert 'streamd_role_refused{refused="follow"} 1.0' in replica.client.get("/metrics").text


def test_a_server_is_not_ready_while_ingest_holds_the_first_commit(tmp_path):
    world = World(tmp_path)
    before = world.client.get("/readyz").json()
    ingest = Heartbeat(tmp_path, "ingest")
    ingest.note(held="all times look like days; set time to days")
    ingest.touch(HELD_STATE)
    answer = world.client.get("/readyz")
    assert answer.status_code == world.client.get("/v2/health/ready").status_code == 503
    assert answer.json()["why"] == "ingest holds the first commit: all times look like days; set time to days"
    page = world.client.get("/status.json").json()
    assert (page["ready"], page["why"]) == (False, answer.json()["why"]), "page and health agree"
    ingest.touch("running")
    assert world.client.get("/readyz").json() == before


def test_a_version_ahead_of_the_log_is_waited_for_and_not_refused(tmp_path):
    src, dst, time = stream(300)
    write_log(tmp_path / "leader", src, dst, time, SCHEMA, tails=(50,), watermark=100 * HOUR)
    leader = World(tmp_path / "leader")
    leader.train(2)
    edge = leader.registry.manifest(leader.registry.champion()).edge
    write_log(tmp_path / "replica", src[: edge - 20], dst[: edge - 20], time[: edge - 20], SCHEMA, tails=(50,))
    shutil.copytree(tmp_path / "leader/models", tmp_path / "replica/models")
    # On a replica the models topic brings the moves.
    (tmp_path / "replica/models/journal.jsonl").write_bytes(b"".join(move.line() for move in leader.registry.journal.moves()))
    replica = World(tmp_path / "replica", log__name="t", log__member="replica")
    replica.run()
    wait(lambda: replica.engine.status.edge == edge - 20)

    writer = LogWriter(tmp_path / "replica", SCHEMA, 100_000)
    writer.commit(batch(SCHEMA, src[edge - 20 :], dst[edge - 20 :], time[edge - 20 :], (), edge - 20), Progress(), 100 * HOUR)
    writer.close()
    wait(lambda: replica.engine.status.ready and ask(replica)["as_of"]["version"] == leader.registry.champion())
    assert not reading(metrics.champion_not_served)
    replica.stop()


def test_a_server_beside_the_trainer_waits_until_all_machines_know_of_a_version(tmp_path):
    write_log(tmp_path, *stream(), SCHEMA)
    world = World(tmp_path, log__name="t", log__store=f"file://{tmp_path}/store")
    world.registry.journal.show(None)
    world.train(1)
    world.start()
    try:
        assert ask(world)["as_of"]["version"] == "rule"
        assert world.client.get("/v1/models").json()["champion"] is None
        assert world.client.get("/status.json").json()["champion"] is None
        world.registry.journal.show(world.registry.journal.last())
        wait(lambda: ask(world)["as_of"]["version"] == world.registry.champion())
    finally:
        world.stop()

"""What a replica's server and command line ask of the trainer, and how the server answers meanwhile."""

import threading
import time

import pytest
from starlette.testclient import TestClient
from structlog.testing import capture_logs
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.errors import KafkaError, StreamdError, VersionError
from streamd.eventlog.upkeep.holds import compact_done
from streamd.registry.journal import ModelJournal
from streamd.registry.outcome import Waiting
from streamd.replica.members import member_name
from streamd.replica.move_requests import RequestedMoves, compact_everywhere
from streamd.replica.worker_thread import StepThread
from streamd.server.app import create_app
from streamd.server.state import ServerState
from streamd.telemetry.heartbeat import Heartbeat
from tests.replica.models_world import MemoryLog, MemoryTopic, ReplicaSide, TrainerSide

WHY = {"why": "it was better"}


@pytest.fixture
def sides(tmp_path):
    log, url = MemoryLog(), f"file://{tmp_path}/store"
    trainer, replica = TrainerSide(tmp_path / "trainer", log, url), ReplicaSide(tmp_path / "replica", log, url)
    for n in (1, 2):
        trainer.learn(n)
    trainer.settle()
    replica.step()
    yield trainer, replica


class Running:
    """Trainer and replica step by themselves while a test waits."""

    def __init__(self, *sides):
        self._threads = [StepThread("test", lambda side=side: side.parts()) for side in sides]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for thread in self._threads:
            thread.close()


class Parts:
    def __init__(self, step):
        self._step = step

    def step(self, wait_seconds=0.0):
        self._step()
        threading.Event().wait(0.02)

    def close(self):
        pass


def running(trainer, replica):
    trainer.parts = lambda: Parts(trainer.settle)
    replica.parts = lambda: Parts(replica.step)
    return Running(trainer, replica)


def requested(replica, wait_seconds):
    return RequestedMoves(lambda: member_name(replica.settings.data_dir), replica.registry, wait_seconds, lambda: MemoryTopic(replica.log))


def served(replica, wait_seconds):
    beat = Heartbeat(replica.settings.data_dir, "serve")
    return TestClient(create_app(ServerState(replica.settings, replica.registry, beat, requested(replica, wait_seconds))), "http://localhost")


def test_a_replica_answers_200_once_the_trainers_move_is_here(sides):
    client = served(sides[1], 20)
    with running(*sides):
        answer = client.post("/v1/models/11-1/promote", json=WHY)
        assert answer.status_code == 200 and answer.json() == {"action": "promote", "champion": "11-1", "shadow": "11-1"}
        assert client.get("/v1/models").json()["champion"] == "11-1" == sides[0].registry.champion()
        refused = client.post("/v1/models/rollback", json=WHY)
    assert refused.status_code == 409 and "no version to roll back to" in refused.json()["detail"]
    move = sides[1].registry.journal.last()
    assert (move.who, move.why) == (f"api@{sides[1].follower.member.name}", "it was better")


def test_a_replica_answers_200_only_once_its_servers_go_by_the_move(sides, monkeypatch):
    show = ModelJournal.show

    def late(journal, move):
        time.sleep(0.3)
        show(journal, move)

    monkeypatch.setattr(ModelJournal, "show", late)
    client = served(sides[1], 20)
    with running(*sides):
        assert client.post("/v1/models/11-1/promote", json=WHY).status_code == 200
        assert client.get("/v1/models").json()["champion"] == "11-1"


def test_a_replica_answers_202_where_the_trainer_does_not_answer_in_time(sides):
    trainer, replica = sides
    client = served(replica, 0)
    answer = client.post("/v1/models/11-1/promote", json=WHY)
    assert answer.status_code == 202
    path = f"/v1/models/requests/{answer.json()['request']}"
    assert client.get(path).json()["state"] == "waiting"
    trainer.settle()
    replica.step()
    assert client.get(path).json()["moved"]["champion"] == "11-1" and client.get(path).json()["state"] == "done"
    refused = client.post("/v1/models/rollback", json=WHY).json()["request"]
    trainer.settle()
    replica.step()
    assert "roll back" in client.get(f"/v1/models/requests/{refused}").json()["reason"]
    assert client.post("/v1/models/9-9/promote", json=WHY).status_code == 404


def test_a_replica_without_kafka_answers_503_and_keeps_its_champion(sides):
    sides[1].log.is_away = True
    assert served(sides[1], 5).post("/v1/models/11-1/promote", json=WHY).status_code == 503
    assert sides[1].registry.champion() == "12-2"


def test_the_command_line_of_a_replica_asks_the_trainer(sides, monkeypatch):
    trainer, replica = sides
    monkeypatch.setattr("streamd.replica.move_requests.KafkaModelsTopic", lambda *_: MemoryTopic(replica.log))
    for key, value in (("NAME", "t"), ("STORE", replica.url), ("MEMBER", "replica")):
        monkeypatch.setenv(f"STREAMD_LOG__{key}", value)
    monkeypatch.setattr("streamd.cli.models.WAIT_SECONDS", 20)
    where = ["--data-dir", str(replica.settings.data_dir)]
    with running(trainer, replica):
        done = CliRunner().invoke(app, ["models", "promote", "11-1", *where])
        assert done.exit_code == 0 and "champion: 11-1" in done.output, done.output
    monkeypatch.setattr("streamd.cli.models.WAIT_SECONDS", 0)
    late = CliRunner().invoke(app, ["models", "rollback", *where])
    assert late.exit_code == 1 and "has not answered yet" in late.output


def test_what_is_asked_without_an_answer_says_so(sides):
    moves = requested(sides[1], 0)
    assert isinstance(moves.rollback("api", "why"), Waiting)
    sides[1].log.is_away = True
    with pytest.raises(KafkaError):
        moves.rollback("api", "why")
    sides[1].log.is_away = False
    with running(*sides), pytest.raises(VersionError, match="refused it"):
        requested(sides[1], 20).promote("99-9", "api", "why")


def test_compaction_is_asked_of_all_machines_and_says_whom_it_waits_for(sides):
    trainer, replica = sides
    replica.step()
    told = []
    done, text = compact_everywhere(replica.settings, 300, 0, told.append, MemoryTopic(replica.log))
    assert not done and replica.follower.member.name in told[0] and "the request stays" in text

    def leader():
        trainer.settle()
        compact_done(trainer.settings.data_dir)

    trainer.parts, replica.parts = (lambda: Parts(leader)), (lambda: Parts(replica.step))
    with Running(trainer, replica):
        done, text = compact_everywhere(replica.settings, 300, 30, told.append, MemoryTopic(replica.log))
    assert done and text.startswith("compacted")


def test_compaction_beyond_the_logs_end_is_not_asked_for(sides):
    _, replica = sides
    with pytest.raises(StreamdError, match="before event 601, and the log here ends at 600"):
        compact_everywhere(replica.settings, 601, 0, lambda _: None, MemoryTopic(replica.log))
    assert not any(b'"compact"' in value for value in replica.log.values)


def test_a_compaction_that_the_trainer_refuses_says_why(sides):
    trainer, replica = sides
    (trainer.settings.data_dir / "published").unlink()
    trainer.now = time.time() + 100
    trainer.parts = lambda: Parts(trainer.settle)
    with Running(trainer):
        done, text = compact_everywhere(replica.settings, 300, 30, lambda _: None, MemoryTopic(replica.log))
    assert not done and text == "the trainer refused it: Event 300 is beyond the log's end, 0."


def test_a_thread_goes_on_after_any_error_and_starts_anew_after_one_of_kafka(monkeypatch):
    monkeypatch.setattr("streamd.replica.worker_thread.RETRY_SECONDS", 0.0)
    made, steps, closed, enough = [], [], [], threading.Event()

    class Failing:
        def __init__(self):
            made.append(self)

        def step(self, wait_seconds):
            steps.append(wait_seconds)
            if len(steps) == 5:
                enough.set()
            raise [ValueError("bug"), KafkaError("away"), OSError("full")][len(steps) % 3]

        def close(self):
            closed.append(self)

    failures = []
    thread = StepThread("test", Failing, lambda *failure: failures.append(failure))
    assert enough.wait(20)
    thread.close()
    assert failures[:2] == [("test", "away"), ("test", "full")] and failures[-1] == ("test", ""), "a task that is over fails no more"
    assert len(made) >= 2 and len(closed) >= len(made) - 1


def test_a_step_that_succeeds_after_failures_is_logged_once(monkeypatch):
    monkeypatch.setattr("streamd.replica.worker_thread.RETRY_SECONDS", 0.0)
    tries, enough = [], threading.Event()

    class Away:
        def step(self, wait_seconds):
            tries.append(1)
            if len(tries) < 4:
                raise OSError("away")
            if len(tries) > 5:
                enough.set()

        def close(self): ...

    with capture_logs() as said:
        failures = []
        thread = StepThread("archive", Away, lambda *failure: failures.append(failure))
        assert enough.wait(20)
        thread.close()
    assert failures == [("archive", "away")] * 3 + [("archive", "")] * 2
    assert [(line["event"], line["thread"]) for line in said] == [("step_failed", "archive"), ("step_succeeds_again", "archive")]

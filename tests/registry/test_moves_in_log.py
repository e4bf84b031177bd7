"""Moves of the champion as lines of the log."""

import json
import threading
from dataclasses import replace

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.errors import UntakenError, VersionError
from streamd.eventlog import line_outbox as outbox
from streamd.eventlog.delivery import Wait
from streamd.eventlog.journal.changelog_position import CHANGELOG, ChangelogPosition
from streamd.eventlog.layout import MOVES
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import Schema
from streamd.registry import Registry
from streamd.registry.journal import ModelJournal
from streamd.settings.paths import Paths
from tests.builders import settings, stream, write_log
from tests.faults import Crash, FaultyDisk
from tests.registry.test_registry import candidate

SHORT = Wait(0.02)


@pytest.fixture
def path(tmp_path):
    write_log(tmp_path, *stream(8))
    return tmp_path


def of(path, disk=outbox.DISK, wait=SHORT, **values):
    chosen = settings(path, **values)
    return Registry(Paths.of(chosen, "serve"), 9, chosen.log, disk, wait)


def champions(registry):
    return [(m.action, m.champion) for m in registry.journal.moves()]


def test_moves_are_lines_of_the_log_which_a_caller_commits_where_no_ingest_runs(path):
    registry = of(path)
    assert registry.journal.last() is None
    for n in (1, 2):
        registry.publish(candidate(n))
    registry.rollback("operator", "worse")
    assert champions(of(path)) == [("promote", "11-1"), ("promote", "12-2"), ("rollback", "11-1")]
    log = LogReader.open(path)
    lines = [json.loads(line) for line in (path / MOVES).read_bytes().splitlines()]
    assert [line["seq"] for line in lines] == [log.state.seq - 2, log.state.seq - 1, log.state.seq]
    assert [m.champion for m in registry.journal.recent()[0]] == ["11-1", "12-2", "11-1"] and registry.journal.recent()[1] == 3
    assert registry.champion() == "11-1" and not (path / "models/journal.jsonl").exists() and verify_log(path)[1] == []
    assert registry.moved_by_hand() == "11-1" and log.num_edges == 8
    assert json.loads((path / "models/aliases.json").read_text()) == {"champion": "11-1", "shadow": "11-1"}


def test_no_move_of_a_commit_that_is_not_published_counts(path):
    registry = of(path)
    registry.publish(candidate(1))
    seq = LogReader.open(path).state.seq
    with (path / MOVES).open("ab") as file:
        file.write(b'{"seq":%d,' % (seq + 1) + (path / MOVES).read_bytes().split(b",", 1)[1].replace(b"11-1", b"99-9"))
    assert registry.champion() == "11-1" and registry.journal.recent()[1] == len(registry.journal.moves()) == 1
    registry.publish(candidate(2))
    assert champions(registry) == [("promote", "11-1"), ("promote", "12-2")], "recovery cut the line, which no commit has"


@pytest.mark.usefixtures("ingest_asleep")
def test_a_move_waits_for_ingest_which_takes_it_into_its_next_commit(path):
    waits = []
    registry = of(path, wait=Wait(9, lambda: waits.append(outbox.is_empty(path))))
    log = LogWriter(path, Schema())
    publishing = threading.Thread(target=lambda: registry.publish(candidate(1)))
    publishing.start()
    while not waits:
        pass
    assert registry.champion() is None and not any(waits)
    log.show_acknowledged()
    publishing.join()
    assert registry.champion() == "11-1"
    log.close()


@pytest.mark.usefixtures("ingest_asleep")
def test_a_move_that_ingest_does_not_take_in_time_is_named_and_made_later_before_any_other(path):
    registry = of(path)
    for n in (1, 2):
        registry.publish(candidate(n))
    log = LogWriter(path, Schema())
    with pytest.raises(UntakenError, match="has not taken the move into the log") as caught:
        registry.rollback("operator", "worse")
    request = caught.value.request
    assert request and registry.journal.is_on_its_way(request) and registry.champion() == "12-2"
    with pytest.raises(UntakenError, match="has not taken earlier lines") as second:
        registry.promote("12-2", "operator", "")
    assert second.value.request == ""
    log.show_acknowledged()
    log.close()
    assert registry.champion() == "11-1" and not registry.journal.is_on_its_way(request)
    assert registry.journal.last().request == request
    with pytest.raises(VersionError, match="no version to roll back to"):
        registry.rollback("operator", "again")


@pytest.mark.usefixtures("ingest_asleep")
def test_a_command_says_that_its_move_is_queued_which_a_later_ingest_makes_once(path, monkeypatch):
    for n in (1, 2):
        of(path).publish(candidate(n))
    monkeypatch.setattr(Registry, "of", classmethod(lambda cls, chosen: of(path)))
    # As while ingest connects to a broker that does not answer.
    log = LogWriter(path, Schema())
    run = CliRunner().invoke(app, ["models", "rollback", "--data-dir", str(path)])
    assert run.exit_code == 1 and run.stdout == "" and "queued as " in run.stderr and "do not repeat it" in run.stderr
    queued = run.stderr.split("queued as ")[1].split(":")[0]
    again = CliRunner().invoke(app, ["models", "promote", "12-2", "--data-dir", str(path)])
    assert isinstance(again.exception, UntakenError) and again.exception.request == "", "not made, an error, status 2"
    # Ingest is killed before it connects, and begins again.
    log.files.close()
    assert of(path).champion() == "12-2"
    log = LogWriter(path, Schema())
    log.show_acknowledged()
    assert [m.request for m in of(path).journal.moves()][2:] == [queued] and of(path).champion() == "11-1"
    log.close()
    run = CliRunner().invoke(app, ["models", "promote", "12-2", "--data-dir", str(path)])
    assert (run.exit_code, run.stdout) == (0, "champion: 12-2\n")


@pytest.mark.usefixtures("ingest_asleep")
def test_an_operator_is_answered_while_the_trainer_waits_for_ingest(path):
    for n in (1, 2):
        of(path).publish(candidate(n))
    log, waits = LogWriter(path, Schema()), []
    trainer = of(path, wait=Wait(60, lambda: waits.append(True)))
    publishing = threading.Thread(target=trainer.publish, args=(candidate(3),))
    publishing.start()
    while not waits:
        pass
    with pytest.raises(UntakenError, match=r"holds models/\.lock"):
        of(path).rollback("operator", "worse")
    log.show_acknowledged()
    while publishing.is_alive():
        log.show_acknowledged()
    publishing.join()
    log.close()
    of(path).rollback("operator", "worse")
    assert champions(of(path))[-2:] == [("promote", "13-3"), ("rollback", "11-1")]


def test_a_full_disk_keeps_a_move_waiting_and_it_is_made_once_there_is_room(path):
    for n in (1, 2):
        of(path).publish(candidate(n))
    last = of(path).journal.last()
    trial = FaultyDisk()
    outbox.put(path, [(MOVES, replace(last, champion="11-1").line())])
    ModelJournal(path / "models", log=path, disk=trial).lock.__enter__()
    assert outbox.is_empty(path)
    outbox.put(path, [(MOVES, replace(last, champion="12-2").line())])
    for at in range(trial.calls):
        disk = FaultyDisk(at, "full")
        with capture_logs() as logs:
            try:
                with ModelJournal(path / "models", disk, path, SHORT).lock:
                    pass
            except UntakenError:
                assert [one["event"] for one in logs if one["log_level"] == "error"] == ["outbox_waits"], at
        if outbox.is_empty(path):
            outbox.put(path, [(MOVES, replace(last, champion=f"{at}").line())])
    with of(path).journal.lock:
        pass
    moves = [m.champion for m in of(path).journal.moves()]
    assert len(set(moves[3:])) == len(moves[3:]) and verify_log(path)[1] == []


@pytest.mark.parametrize("mode", ["kill", "torn", "power"])
def test_a_promotion_stopped_at_any_system_call_is_made_once(tmp_path, mode):
    def begun(path):
        write_log(path, *stream(8))
        for n in (1, 2):
            of(path).publish(candidate(n))
        return path

    trial = FaultyDisk()
    of(begun(tmp_path / "calls"), trial).rollback("operator", "worse")
    before = [("promote", "11-1"), ("promote", "12-2")]
    for at in range(trial.calls):
        path = begun(tmp_path / f"{at}")
        disk = FaultyDisk(at, mode)
        with pytest.raises(Crash):
            of(path, disk).rollback("operator", "worse")
        disk.abandon(None)
        assert champions(of(path))[:2] == before, f"{mode} at call {at}"
        of(path).sweep()
        if of(path).champion() == "12-2":
            of(path).rollback("operator", "worse")
        assert champions(of(path)) == [*before, ("rollback", "11-1")], f"{mode} at call {at}"
        assert outbox.is_empty(path) and verify_log(path)[1] == []


def older(path):
    """The moves of a directory as the release before wrote them."""
    lines = []
    for n, action, champion in ((1, "promote", "11-1"), (2, "promote", "12-2"), (3, "rollback", "11-1")):
        lines.append(b'{"time":%d.5,"action":"%s","champion":"%s","shadow":"11-1","who":"trainer","why":"x"}\n'
                     % (n, action.encode(), champion.encode()))
    (path / "models").mkdir(exist_ok=True)
    (path / "models/journal.jsonl").write_bytes(b"no move\n[]\n{}\n" + b"".join(lines) + b'{"time":4,"torn')
    return [("promote", "11-1"), ("promote", "12-2"), ("rollback", "11-1")]


def test_moves_of_the_release_before_are_read_and_become_the_first_lines(path):
    moves = older(path)
    assert champions(of(path)) == moves and of(path).champion() == "11-1" and not (path / MOVES).read_bytes()
    registry = of(path)
    registry.publish(candidate(3))
    assert champions(registry) == champions(of(path)) == [*moves, ("promote", "13-3")]
    assert [m.time for m in registry.journal.moves()[:3]] == [1.5, 2.5, 3.5]
    assert not (path / "models/journal.jsonl").exists(), "the log has all of it"


@pytest.mark.parametrize("mode", ["kill", "power"])
def test_an_upgrade_stopped_at_any_system_call_takes_each_older_move_once(tmp_path, mode):
    def begun(path):
        write_log(path, *stream(8))
        return path, older(path)

    trial = FaultyDisk()
    of(begun(tmp_path / "calls")[0], trial).sweep()
    for at in range(trial.calls):
        path, moves = begun(tmp_path / f"{at}")
        disk = FaultyDisk(at, mode)
        with pytest.raises(Crash):
            of(path, disk).sweep()
        disk.abandon(None)
        assert champions(of(path)) == moves, f"{mode} at call {at}"
        of(path).sweep()
        of(path).publish(candidate(3))
        assert champions(of(path)) == [*moves, ("promote", "13-3")], f"{mode} at call {at}"


def test_moves_go_with_a_log_that_gets_other_machines_and_come_back(path):
    registry = of(path)
    for n in (1, 2):
        registry.publish(candidate(n))
    # From its next start on the log has a changelog.
    (path / CHANGELOG).write_bytes(ChangelogPosition(1, 1, 1).pack())
    shared = of(path, log__name="t")
    shared.rollback("operator", "worse")
    moves = [("promote", "11-1"), ("promote", "12-2"), ("rollback", "11-1")]
    assert champions(shared) == champions(of(path, log__name="t")) == moves and LogReader.open(path).state.seq == 3
    (path / CHANGELOG).unlink()
    registry = of(path)
    registry.publish(candidate(3))
    moves.append(("promote", "13-3"))
    assert champions(registry) == moves
    assert champions(of(path, log__name="t")) == moves

"""Each long command says how far it is: in a log by lines that are not wrapped, end whole, and never go back."""

import dataclasses
import gzip
import itertools
import re
import threading

import numpy as np
import pytest
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.eventlog.upkeep.holds import Hold, asked_to_compact, write_hold
from streamd.eventlog.upkeep.housekeeper import STEP_SECONDS, Housekeeper
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.exchange.event_files import EventFile
from streamd.graph import jit, warm_up
from streamd.settings.loading import RetentionSettings
from streamd.telemetry import progress
from tests.builders import ManualClock, stream, write_log

SCHEMA = Schema(2, 0, 0)
OTHER = re.compile(r"\d{4}-\d\d-\d\d [\d:]+ \[|compiling kernels, |[\d,]+ of [\d,]+ edges are exact copies|waiting for .* does not run$|waiting for .*: for .* so far$|not kept in ")
"""How log lines begin, which go to stderr too, and lines about kernels that are not compiled yet, about copies, a wait and a backtest that is not kept."""
LINE = re.compile(r"(.+): (\d+) %, [\d,]+ (?:of [\d,]+ )?\w+.*")


def run(*args, **env):
    """Standard error of a command in a narrow log, as parts with the shares that each said."""
    narrow = {"COLUMNS": "40", "STREAMD_STREAM__EDGE_FEATURE_DIM": "2", "STREAMD_STREAM__TIME_UNIT": "us",
              "STREAMD_MODEL__NAME": "pair"} | env
    done = CliRunner().invoke(app, [str(a) for a in args], env=narrow)
    assert done.exit_code == 0 or args[0] == "compact", done.output
    found = {}
    for line in done.stderr.splitlines():
        if OTHER.match(line):
            continue
        match = LINE.fullmatch(line)
        assert match, f"{line!r} is wrapped, or no progress"
        found.setdefault(match[1], []).append(int(match[2]))
    return found


@pytest.fixture
def every(monkeypatch):
    """A line for whatever is said, of works in small steps."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr("streamd.exchange.load.RECORDS", 40)
    monkeypatch.setattr("streamd.exchange.importing.IMPORT_ROWS", 40)
    monkeypatch.setattr("streamd.exchange.export.CHUNK_EDGES", 40)


def rises_to_the_whole(shares):
    return len(shares) > 2 and shares == sorted(shares) and shares[-1] == 100


def table(path, num_edges=300):
    src, dst, time = (x.tolist() for x in stream(num_edges))
    path.write_text("src,dst,time,a,b\n" + "".join(
        f"{u},{v},{t},1,2\n" for u, v, t in zip(src, dst, time, strict=True)))
    return path


def test_files_go_in_and_out_and_are_checked_with_shares(tmp_path, every):
    file, log = table(tmp_path / "a table with a long name.csv"), tmp_path / "log"
    said = run("tguf", "import", file, "--features", "a,b", "--data-dir", log)
    assert list(said) == [f"importing {file}"] and rises_to_the_whole(said[f"importing {file}"])
    said = run("verify", "--data-dir", log)
    assert list(said) == ["checking what was committed"] and rises_to_the_whole(said["checking what was committed"])
    said = run("tguf", "export", tmp_path / "out.tguf", "--data-dir", log)
    assert rises_to_the_whole(said[f"to {tmp_path / 'out.tguf'}"])
    said = run("tguf", "import", tmp_path / "out.tguf", "--data-dir", tmp_path / "again", "--time-unit", "us")
    assert rises_to_the_whole(said[f"importing {tmp_path / 'out.tguf'}"])


def test_a_backtest_says_each_of_its_parts(tmp_path, every):
    file = table(tmp_path / "events.csv", 300)
    said = run("backtest", file, "--features", "a,b", "--initial-epochs", "2", "--stale", "5",
               STREAMD_MODEL__DIM="8", STREAMD_TRAINING__REPLAY_EVENTS="20",
               STREAMD_TRAINING__THREADS="1")
    first = "fresh facts, reading the first part", "fresh facts, learning the first part", "fresh facts"
    older = [name.replace("fresh facts", "facts 5 events old") for name in first]
    assert list(said) == [f"reading {file}", *first, *older]
    assert all(shares == sorted(shares) and shares[-1] == 100 for shares in said.values())


def test_a_short_work_says_one_line(tmp_path):
    file = table(tmp_path / "events.csv")
    said = run("tguf", "import", file, "--features", "a,b", "--data-dir", tmp_path / "log")
    assert said == {f"importing {file}": [100]}


def test_an_import_that_ends_at_a_row_does_not_say_it_is_done(tmp_path):
    file = table(tmp_path / "events.csv", 5000)
    file.write_text(file.read_text() + "1,2,3,4,5\n")
    done = CliRunner().invoke(app, ["tguf", "import", str(file), "--features", "a,b", "--data-dir", str(tmp_path / "log")],
                              env={"STREAMD_STREAM__EDGE_FEATURE_DIM": "2", "STREAMD_STREAM__TIME_UNIT": "us"})
    assert done.exit_code == 1 and re.search(r"csv: 81 %, 4,096 of 5,001 events", done.stderr) and "100 %" not in done.stderr


def deleted(path):
    """A log of three segments with one node deleted."""
    write_log(path, *stream(300), SCHEMA, segment_edges=100)
    writer = LogWriter(path, SCHEMA, 100)
    rows = np.zeros(1, DELETION)
    rows["src"], rows["dst"], rows["time"] = 3, -1, -1
    writer.commit(dataclasses.replace(empty_batch(SCHEMA), deletions_X=rows), Progress(), writer.watermark)
    return writer


def one_segment_a_step(monkeypatch):
    clock = ManualClock()
    monkeypatch.setattr(clock, "monotonic", itertools.count(0, 0.6 * STEP_SECONDS).__next__)
    monkeypatch.setattr("streamd.eventlog.upkeep.housekeeper.time", clock)


def test_compacting_here_says_segments(tmp_path, every, monkeypatch):
    deleted(tmp_path).close()
    one_segment_a_step(monkeypatch)
    said = run("compact", "--data-dir", tmp_path)
    assert list(said) == ["rewriting segments"] and rises_to_the_whole(said["rewriting segments"])


def test_compacting_beside_an_ingest_says_whom_it_waits_for_and_how_far_ingest_is(tmp_path, every, monkeypatch):
    one_segment_a_step(monkeypatch)
    monkeypatch.setattr("streamd.cli.compaction.POLL_SECONDS", 0.01)
    writer = deleted(tmp_path)
    write_hold(tmp_path, "train", Hold(150, 150))
    said = run("compact", "--data-dir", tmp_path, "--wait", "0.3")
    assert said == {}, "a wait has no percentage: the trainer may wait for windows, which no progress brings nearer"
    keeper, stop = Housekeeper(writer, RetentionSettings(), lambda _: ()), threading.Event()

    def ingest():
        while not stop.wait(0.1) and asked_to_compact(tmp_path) is not None:
            keeper.step()

    write_hold(tmp_path, "train", Hold(300, 300))
    thread = threading.Thread(target=ingest)
    thread.start()
    said = run("compact", "--data-dir", tmp_path, "--wait", "20")
    stop.set()
    thread.join()
    writer.close()
    assert list(said) == ["rewriting segments"] and rises_to_the_whole(said["rewriting segments"])


@pytest.mark.parametrize(("name", "text", "rows"), [
    ("a.csv", "src,dst,time\r\n1,2,3\r\n4,5,6\r\n", 2), ("a.csv", "src\r1\r2\r", 2), ("a.csv.gz", "src\n1\n", 1),
    ("a.ndjson", "{}\n{}\n{}\n", 3), ("a.ndjson", "{}\n{}", 2), ("a.csv", "src\n1", 1), ("a.csv", "src\n", 0), ("a.csv", "src", 0), ("a.csv", "", 0)])
def test_rows_of_a_file_are_counted_before_they_are_read(tmp_path, name, text, rows):
    with (gzip.open if name.endswith("gz") else open)(tmp_path / name, "wb") as file:
        file.write(text.encode())
    assert EventFile(tmp_path / name).count_rows() == rows


@pytest.mark.parametrize("command", ["import", "backtest"])
def test_a_file_without_events_has_no_progress_and_is_named(tmp_path, command):
    (tmp_path / "empty.csv").write_text("src,dst,time\n")
    done = CliRunner().invoke(app, [command, str(tmp_path / "empty.csv"), "--data-dir", str(tmp_path / "log")], env={"STREAMD_MODEL__NAME": "pair"})
    assert f"{tmp_path / 'empty.csv'} has no events. Operator action: check the command" in str(done.exception)
    assert not re.search(r"of [01] event| 0 %", done.stderr), done.stderr


def test_a_log_without_events_has_a_way_to_get_some(tmp_path):
    LogWriter(tmp_path, Schema(0, 0, 0), 130).close()
    done = CliRunner().invoke(app, ["backtest", "--data-dir", str(tmp_path)], env={"STREAMD_MODEL__NAME": "pair"})
    assert f"{tmp_path} has no events. Operator action: start `streamd run`" in str(done.exception), done.exception


def test_kernels_that_are_compiled_first_are_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "CACHE", tmp_path)
    monkeypatch.setattr(warm_up, "warm_graph", lambda _: True)
    monkeypatch.setattr(warm_up, "warm_facts", lambda _: True)
    monkeypatch.setattr(warm_up.subprocess, "Popen", lambda *_, **__: warm_up.subprocess.run(["true"], check=True))
    assert jit.compile_notice() == f"compiling kernels, once per machine and version: {jit.COMPILE_TIME}"
    (tmp_path / "kernels.insert-1.nbi").touch()
    assert jit.compile_notice(), "a compilation that was cut short goes on"
    (tmp_path / "facts_1").mkdir()
    (tmp_path / "facts_1/kernels.advance-1.nbi").touch()
    warm_up.warm_up()
    assert jit.compile_notice() is None
    monkeypatch.setattr(jit, "CACHE", None)
    warm_up.warm_up()
    assert "at every start" in jit.compile_notice()


@pytest.mark.parametrize("cold", [True, False])
def test_backtest_and_roles_say_that_they_compile_only_where_they_do(tmp_path, monkeypatch, cold):
    from structlog.testing import capture_logs

    from streamd.daemon.kernels_ready import make_kernels_ready

    warmed = []
    monkeypatch.setattr(jit, "compile_notice", lambda: "compiling kernels" if cold else None)
    monkeypatch.setattr(warm_up, "warm_up", lambda _=None: warmed.append(True) or 0.0)
    with capture_logs() as said:
        make_kernels_ready()
    assert [s["event"] for s in said] == ["compiling_kernels"] * cold + ["kernels_ready"]
    done = CliRunner().invoke(app, ["backtest", str(tmp_path / "none.csv")])
    assert ("compiling kernels" in done.stderr) == cold and len(warmed) == 1 + cold

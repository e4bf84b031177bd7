"""History from a file and then a topic: no event twice and none missing, however often the import is killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.daemon.log_roles import check_import
from streamd.errors import SettingsError, StreamdError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Position, Progress, Run
from streamd.exchange.importing import import_file
from streamd.exchange.tables import Columns
from streamd.exchange.warm_start.import_mark import ImportMark, unfinished_import
from streamd.exchange.warm_start.warm_start import Then
from tests.builders import settings
from tests.crash.daemons import Daemon, wait

pytestmark = pytest.mark.kafka
BEGIN_S, STEP_S, PARTITIONS = 1_767_225_600, 60, 3
"""Event i happens STEP_S after the one before, and is in partition i % PARTITIONS."""


def event(i):
    return f"u:{i % 11}", f"i:{i * 7 % 23}", (BEGIN_S + i * STEP_S) * 1_000_000


def table(path, events):
    src, dst, when = zip(*map(event, events), strict=True)
    pq.write_table(pa.table({"src": src, "dst": dst, "time": when}), path)
    return path


def send(kafka, topic, events, size=1, extra=()):
    """Send events in order, `size` in a record with the timestamp of the last one. extra: further events, one in a record."""
    parts = {p: [i for i in events if i % PARTITIONS == p] for p in range(PARTITIONS)}
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for partition, own in parts.items():
            for a in range(0, len(own), size):
                value = [dict(zip(("src", "dst", "time"), event(i), strict=True)) for i in own[a:a + size]]
                at_ms = event(own[a:a + size][-1])[2] // 1000
                producer.send(topic, json.dumps(value if size > 1 else value[0]).encode(), partition=partition, timestamp_ms=at_ms)
        for value in extra:
            producer.send(topic, json.dumps(value).encode(), partition=0, timestamp_ms=value["time"] // 1000)
        producer.flush()


@pytest.fixture
def topic(kafka):
    """A topic without retention: the broker would drop records with old timestamps some minutes after its start."""
    name = f"warm-{uuid.uuid4().hex}"
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.create_topics({name: {"num_partitions": PARTITIONS, "replication_factor": 1, "configs": {"retention.ms": "-1"}}}, wait_for_metadata=True)
    admin.close()
    return name


def made(kafka, path, topic):
    return settings(path, kafka__bootstrap_servers=kafka.bootstrap_servers, kafka__topics=[topic], stream__time_unit="us",
                    ingest__idle_timeout_seconds=0, ingest__segment_edges=300)


def warm(kafka, path, topic, file, **options):
    return import_file(made(kafka, path, topic), file, Columns(), lambda *_: None, then=Then(topics=(topic,), **options))


def ingested(kafka, path, topic, num):
    """The events of the log after ingest has run until it has so many, each as it was sent."""
    daemon = Daemon(path, kafka.bootstrap_servers, topic, ingest__segment_edges=300)
    daemon.start("ingest")
    try:
        wait(lambda: daemon.edges() >= num, f"the log has {num} events", 60)
        time.sleep(1)
    finally:
        daemon.stop()
    return Counter(daemon.events_as_sent())


def expected(events):
    return Counter((u.encode() if isinstance(u, bytes) else u, v, t) for u, v, t in map(event, events))


@pytest.mark.parametrize("size", [1, 7])
def test_the_topic_continues_at_the_end_of_the_history(kafka, topic, tmp_path, size):
    """The topic has the last third of the history too, so that the seam is amid its records."""
    file = table(tmp_path / "history.parquet", range(600))
    send(kafka, topic, range(400, 1000), size)
    done = warm(kafka, tmp_path / "log", topic, file)
    assert done.num_events == 600 and done.joined.num_in_history in range(60, 80) and done.joined.num_events in range(119, 150) and done.doubts == ()
    assert ingested(kafka, tmp_path / "log", topic, 1000) == expected(range(1000))


def test_events_that_came_late_are_taken_once_from_either_side(kafka, topic, tmp_path):
    """Of the events of the last half hour the history has every other one only: the others came after it was written."""
    late = set(range(570, 600, 2))
    file = table(tmp_path / "history.parquet", [i for i in range(600) if i not in late])
    send(kafka, topic, range(400, 700))
    done = warm(kafka, tmp_path / "log", topic, file)
    (doubt,) = done.doubts
    assert "15 events of the topics are older than the history's end but not in it, such as" in doubt
    position = done.joined.positions[topic][0]
    assert position.offset == (570 - 402) // 3 and position.ahead[0] == Run((57, 0), (57, 0))
    assert ingested(kafka, tmp_path / "log", topic, 700) == expected(range(700))


def test_equal_events_are_as_many_as_in_the_history_and_the_topic(kafka, topic, tmp_path):
    """The topic has two more events that are equal to one of the history; one of them is in the history."""
    src, dst, when = event(597)
    again = {"src": src, "dst": dst, "time": when}
    rows = [*map(event, range(600)), event(597)]
    rows.sort(key=lambda row: row[2])
    pq.write_table(pa.table(dict(zip(("src", "dst", "time"), zip(*rows, strict=True), strict=True))), tmp_path / "history.parquet")
    send(kafka, topic, range(400, 600), extra=[again, again])
    done = warm(kafka, tmp_path / "log", topic, tmp_path / "history.parquet")
    assert done.joined.num_events - done.joined.num_in_history == 1
    assert ingested(kafka, tmp_path / "log", topic, 602)[event(597)] == 3


def test_given_offsets_are_taken_and_wrong_ones_are_named(kafka, topic, tmp_path):
    file = table(tmp_path / "history.parquet", range(600))
    send(kafka, topic, range(400, 1000))
    at = tmp_path / "offsets.json"

    def offsets(*numbers):
        at.write_text(json.dumps({topic: {str(p): n for p, n in enumerate(numbers)}}))

    offsets(66, 67, 66)
    with pytest.raises(StreamdError, match=r"1 event at or after the offsets would be in the log twice, such as u:5 to i:7 at .*name a time instead"):
        warm(kafka, tmp_path / "log", topic, file, at=str(at))
    offsets(68, 67, 67)
    with pytest.raises(StreamdError, match=r"The history lacks 2 events before the seam, such as u:6 to .*accept the gap"):
        warm(kafka, tmp_path / "log", topic, file, at=str(at))
    offsets(66, 67)
    with pytest.raises(SettingsError, match="The offsets have none of .*-2"):
        warm(kafka, tmp_path / "log", topic, file, at=str(at))
    offsets(66, 67, 900)
    with pytest.raises(SettingsError, match="is 900, but it ends at 200"):
        warm(kafka, tmp_path / "log", topic, file, at=str(at))
    offsets(66, 67, 67)
    done = warm(kafka, tmp_path / "log", topic, file, at=str(at))
    assert done.num_events == 0, "no row is imported again"
    assert [p.offset for _, p in sorted(done.joined.positions[topic].items())] == [66, 67, 67]
    assert ingested(kafka, tmp_path / "log", topic, 1000) == expected(range(1000))


def test_a_history_that_ends_before_the_topic_begins_is_a_gap(kafka, topic, tmp_path):
    file = table(tmp_path / "history.parquet", range(500))
    send(kafka, topic, range(450, 900))
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.delete_records({TopicPartition(topic, p): 100 for p in range(PARTITIONS)})
    admin.close()
    with pytest.raises(StreamdError, match="-0 begins at offset 100, so that records after the history may have been dropped"):
        warm(kafka, tmp_path / "log", topic, file)
    done = warm(kafka, tmp_path / "log", topic, file, accept_gap=True)
    assert len(done.doubts) == PARTITIONS
    assert ingested(kafka, tmp_path / "log", topic, 650) == expected([*range(500), *range(750, 900)])


def test_a_seam_that_is_too_short_and_a_history_of_other_keys_are_refused(kafka, topic, tmp_path):
    file = table(tmp_path / "history.parquet", range(600))
    send(kafka, topic, range(400, 1000))
    with pytest.raises(StreamdError, match=r"events after the seam would be in the log twice.*--seam-seconds above 60"):
        warm(kafka, tmp_path / "log", topic, file, at="2026-01-01T08:00", seam_seconds=60)
    done = warm(kafka, tmp_path / "log", topic, file, at="2026-01-01T08:00", seam_seconds=10_000)
    assert done.joined.num_in_history > 100
    src, dst, when = zip(*map(event, range(600)), strict=True)
    pq.write_table(pa.table({"src": [f"x{s}" for s in src], "dst": dst, "time": when}), file)
    with pytest.raises(StreamdError, match="The history lacks 1.. events before the seam"):
        warm(kafka, tmp_path / "other", topic, file)


def test_a_table_of_an_export_and_a_snapshot_of_iceberg_are_history(kafka, topic, tmp_path):
    """A log is exported while its topic continues, and another log starts from the export."""
    pytest.importorskip("pyiceberg")
    send(kafka, topic, range(1000))
    warm(kafka, tmp_path / "first", topic, table(tmp_path / "history.parquet", range(600)))
    columns = Columns(src="src_key", dst="dst_key")
    for of_format, name in (("parquet", "events/edge_set=default"), ("iceberg", "streamd/events_default/metadata")):
        to = tmp_path / of_format
        done = CliRunner().invoke(app, ["export", "--to", str(to), "--format", of_format, "--data-dir", str(tmp_path / "first")])
        assert done.exit_code == 0, done.output
        file = to / name if of_format == "parquet" else max((to / name).glob("*.metadata.json"))
        log = tmp_path / f"log-{of_format}"
        done = import_file(made(kafka, log, topic), file, columns, lambda *_: None, then=Then(topics=(topic,)))
        assert done.num_events == 600 and done.joined.num_in_history > 50
        assert ingested(kafka, log, topic, 1000) == expected(range(1000))


def test_bad_input_is_refused_before_a_row_is_imported(kafka, topic, tmp_path):
    file = table(tmp_path / "history.parquet", range(10))

    def refused(match, **options):
        with pytest.raises(StreamdError, match=match):
            warm(kafka, tmp_path / "log", options.pop("topic", topic), options.pop("file", file), **options)

    refused("does not exist", topic="nothing-here")
    refused("--at", at="yesterday")
    refused("none.json cannot be read", at=str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text('{"a": 3}')
    refused("bad.json has no offsets", at=str(tmp_path / "bad.json"))
    (tmp_path / "x.tguf").touch()
    os.mkfifo(tmp_path / "pipe.csv")
    refused("is a pipe", file=tmp_path / "pipe.csv")
    assert not (tmp_path / "log").exists()
    with pytest.raises(SettingsError, match="Ingest would not read other.*kafka.topics"):
        import_file(made(kafka, tmp_path / "log", topic), file, Columns(), lambda *_: None, then=Then(topics=("other",)))
    done = CliRunner().invoke(app, ["import", str(file), "--at", "2026-01-01", "--data-dir", str(tmp_path / "log")])
    assert "need a topic" in str(done.exception)


def test_an_import_is_done_once_and_ingest_waits_for_its_end(kafka, topic, tmp_path, monkeypatch):
    file = table(tmp_path / "history.parquet", range(600))
    send(kafka, topic, range(400, 700))
    commits = []
    original = LogWriter.commit

    def commit(self, *args, **more):
        if len(commits) == 1:
            raise KeyboardInterrupt
        commits.append(args)
        return original(self, *args, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LogWriter, "commit", commit)
        warm(kafka, tmp_path / "log", topic, file)
    progress = LogReader.open(tmp_path / "log").state.progress
    assert unfinished_import(progress) == str(file) and progress.positions[f"import:{file}"] == {0: Position(0, 300)}
    with pytest.raises(SettingsError, match=f"The import of {file} into this log is unfinished"):
        check_import(progress)
    other = table(tmp_path / "other.parquet", range(600))
    with pytest.raises(SettingsError, match=f"The import of {file} is unfinished"):
        warm(kafka, tmp_path / "log", topic, other)
    os.utime(file, (1, 1))
    with pytest.raises(SettingsError, match="changed since its import began"):
        warm(kafka, tmp_path / "log", topic, file)
    mark = ImportMark.of(file, repr(Columns()))
    assert mark.name == f"import:{file}"


KILLED = "import sys; from streamd.cli.main import app; app(sys.argv[1:])"


def test_an_import_that_is_killed_at_any_time_continues(kafka, topic, tmp_path):
    file = table(tmp_path / "history.parquet", range(60_000))
    send(kafka, topic, range(59_900, 60_300))
    env = {**os.environ, "STREAMD_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "STREAMD_KAFKA__TOPICS": json.dumps([topic]),
           "STREAMD_STREAM__TIME_UNIT": "us", "STREAMD_INGEST__SEGMENT_EDGES": "300"}
    command = [sys.executable, "-m", "streamd", "import", str(file), "--then", topic, "--data-dir", str(tmp_path / "log")]
    rng = random.Random(3)
    kills = starts = 0
    while True:
        child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        starts += 1
        # From the first commits on.
        before = num_edges(tmp_path / "log")
        while child.poll() is None and num_edges(tmp_path / "log") == before and kills < 6:
            time.sleep(0.01)
        time.sleep(rng.random() * 0.1)
        if child.poll() is None and kills < 6:
            child.send_signal(signal.SIGKILL)
            kills += 1
            child.communicate()
            continue
        output = child.communicate()[0]
        assert child.returncode == 0, output
        break
    assert kills >= 3 and "at the seam are in the history" in output
    log = LogReader.open(tmp_path / "log")
    assert log.num_edges == 60_000
    src, dst, when = log.edges(0, 60_000)
    np.testing.assert_array_equal(when, [event(i)[2] for i in range(60_000)])
    assert [log.keys[n] for n in dst[:100]] == [event(i)[1] for i in range(100)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode and "was imported, and its topics follow" in done.stderr
    assert ingested(kafka, tmp_path / "log", topic, 60_300) == expected(range(60_300))


def num_edges(path):
    log = LogReader.open(path) if path.exists() else None
    return 0 if log is None else log.num_edges


def test_a_mark_is_void_once_the_import_is_finished():
    mark = ImportMark("import:/x", "abc")
    first = mark.at(Position(5, 2))
    assert mark.resume(first) == Position(5, 2) and unfinished_import(first) == "/x" and mark.resume(Progress()) == Position(0)
    last = mark.end(Progress("c", {"t": "id"}, {"t": {0: Position(3)}}))
    assert unfinished_import(last) == "" and last.positions == {"t": {0: Position(3)}} and last.cluster_id == "c"
    with pytest.raises(SettingsError, match="/x was imported"):
        mark.resume(last)

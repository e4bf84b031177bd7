"""`streamd erase` on a real broker: each kind of topic, keys of several types and node sets, and what it says while it waits."""

import datetime
import io
import json
import threading
import time
import uuid
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa
import pytest
from kafka import KafkaProducer
from typer.testing import CliRunner

from streamd.cli.erasure_work import ErasureWork
from streamd.cli.main import app
from streamd.clock import SystemClock
from streamd.daemon.log_roles import make_loop
from streamd.decode.wire import ARROW
from streamd.errors import StreamdError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.holds import (
    Hold,
    ask_to_compact,
    asked_to_compact,
    begin_hold,
    compact_done,
    write_hold,
)
from streamd.eventlog.writer import LogWriter
from streamd.ingest.dead_letters.purge import LetterPurge
from streamd.ingest.dead_letters.sinks import DeadLetter, LocalDeadLetters
from streamd.settings.loading import as_environment, schema_of
from streamd.store.erasure import Erasure
from streamd.store.erasure_requests import ErasureRequests
from streamd.telemetry.heartbeat import Heartbeat
from tests.builders import settings, stream, write_log
from tests.decode.registry import CLICK, Registry, add_proto, avro, proto, proto_class

USERS = ["user:1", "user:2", "user:3", "user:4", "user:5", "user:6"]
START = 1_750_000_000
WIDE = {"COLUMNS": "200"}


class Done(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


def run(s, *args, command="erase"):
    """As the command line does, which prints an error raised on purpose and ends with 2."""
    done = CliRunner().invoke(app, [*command.split(), *map(str, args)], env=as_environment(s) | WIDE)
    if isinstance(done.exception, StreamdError):
        return Done(2, done.stdout, f"{done.stderr}{done.exception}")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Done(done.exit_code, done.stdout, done.stderr)


@contextmanager
def ingesting(s):
    """Ingest in a thread on a log, with its housekeeping, as the role has it. Yields its loop."""
    writer = LogWriter(s.data_dir, schema_of(s), s.ingest.segment_edges)
    loop = make_loop(s, writer, SystemClock(), Heartbeat(s.data_dir, "ingest"))
    stop = threading.Event()
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    try:
        yield loop
    finally:
        stop.set()
        thread.join()
        writer.close()


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def keys_in(path):
    log = LogReader.open(path)
    return {} if log is None else log.ids


def own(user, item):
    return json.dumps({"src": user, "dst": item, "time": START}).encode(), []


def arrow(user, item):
    table = pa.table({"src": [user], "dst": [item], "time": [START]})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue(), [("content-type", ARROW.encode())]


def mapped(user, item):
    after = {"who": int(user.removeprefix("user:")), "what": item, "at": START}
    return json.dumps({"op": "c", "before": None, "after": after, "source": {"table": "t"}}).encode(), []


def as_avro(user, item):
    at = datetime.datetime.fromtimestamp(START, datetime.UTC)
    value = {"user_id": int(user.removeprefix("user:")), "item": {"id": item}, "ts": at, "kind": "view", "seconds": None, "price": None,
             "tags": [], "more": {}}
    return avro(7, CLICK, value), []


def as_protobuf(user, item):
    click = proto_class()(user_id=int(user.removeprefix("user:")), item={"id": item}, kind=0)
    click.ts.FromSeconds(START)
    return proto(9, click), []


CLICKS = {"fields": {"src": {"path": "user_id", "prefix": "user:"}, "dst": "item.id", "time": "ts"}}
KINDS = {
    "json": (own, None),
    "arrow": (arrow, None),
    "mapped": (mapped, {"envelope": "debezium", "time": "s", "fields": {"src": {"path": "who", "prefix": "user:"}, "dst": "what", "time": "at"}}),
    "avro": (as_avro, {"format": "avro", "time": "ms", **CLICKS}),
    "protobuf": (as_protobuf, {"format": "protobuf", "time": "iso8601", **CLICKS}),
}
"""How a topic of each kind holds an edge, and its source."""


@pytest.fixture
def registry():
    server = Registry()
    server.add(7, CLICK)
    add_proto(server, 9)
    yield server
    server.stop()


@pytest.mark.kafka
def test_a_user_is_erased_through_a_topic_of_each_kind(kafka, registry, tmp_path):
    topics = {kind: f"{kind}-{uuid.uuid4().hex[:8]}" for kind in KINDS}
    sources = [{"topic": topics[kind], **source} for kind, (_, source) in KINDS.items() if source is not None]
    s = settings(tmp_path, kafka__bootstrap_servers=kafka.bootstrap_servers, kafka__topics=tuple(topics.values()), sources=sources,
                 schema_registry__url=registry.url, stream__time_unit="s")
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    for kind, (make, _) in KINDS.items():
        kafka.create_topic(topics[kind], 1)
        for user in USERS:
            value, headers = make(user, f"item:{kind}")
            producer.send(topics[kind], value, headers=headers)
    producer.send(topics["json"], b'{"src": "user:2", "dst": 1.5}')
    producer.close()
    with ingesting(s) as loop:
        wait_for(lambda: loop._log.num_edges == len(KINDS) * len(USERS))
        wait_for(lambda: b"user:2" in letters(tmp_path))
        for user, kind in zip(USERS, KINDS, strict=False):
            done = run(s, user, "--topic", topics[kind])
            assert done.exit_code == 0, (kind, done)
            assert "found 0 times" in done.stdout and "compacted" in done.stdout
            assert user not in keys_in(tmp_path) and b"user:2" not in letters(tmp_path) or user == "user:1"
            assert topics[kind] in done.stderr and f"Not searched: records in Kafka ({', '.join(topics.values())})" in done.stdout
        assert USERS[-1] in keys_in(tmp_path) and loop._letters.num_letters == 1, "no delete was refused"

        # Again: nothing is sent, and the proof is made anew.
        done = run(s, "user:1", "user:6")
        assert done.exit_code == 0 and "holds no key user:1" in done.stderr and f"topic {topics['json']}: user:6" in done.stderr
        assert not any(user in keys_in(tmp_path) for user in USERS)

        # A user who comes back is found.
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
        producer.send(topics["json"], own("user:1", "item:json")[0])
        producer.close()
        wait_for(lambda: "user:1" in keys_in(tmp_path))
        done = run(s, "user:1", command="verify --deleted")
        assert done.exit_code == 1 and "found: key 1 in nodes.keys" in done.stderr


def letters(path):
    """The values of the dead letters."""
    import base64

    file = path / "deadletter/current.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    return b"\n".join(base64.b64decode(json.loads(line)["value_base64"]) for line in lines)


SETS = {"graph.node_sets": {"user": {}, "item": {}}, "graph.edge_sets": {"views": {"source": "user", "target": "item"}, "follows": {"source": "user", "target": "user"}}}


@pytest.mark.kafka
def test_keys_of_several_types_and_node_sets_are_told_apart(kafka, tmp_path):
    topic = f"sets-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 1)
    s = settings(tmp_path, kafka__bootstrap_servers=kafka.bootstrap_servers, kafka__topics=(topic,), stream__time_unit="s", **SETS)
    events = [{"edge_set": "views", "src": src, "dst": dst, "time": START} for src in (8, "8", 9) for dst in (8, "8", 7)]
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    producer.send(topic, json.dumps(events).encode())
    producer.close()
    with ingesting(s) as loop:
        wait_for(lambda: loop._log.num_edges == len(events))
        done = run(s, "8")
        assert done.exit_code == 2 and all(f"8{kind} of node set {name}" in done.stderr for kind in ("", " (integer)") for name in ("user", "item")) and "--node-set" in done.stderr
        assert run(s, "8", "--node-set", "shop").exit_code == 2 and run(s, "x", "--key-type", "integer").exit_code == 2
        assert run(s, "8", "--key-type", "number").exit_code == 2
        before = set(keys_in(tmp_path))

        done = run(s, "8", "--node-set", "item", "--key-type", "integer")
        assert done.exit_code == 0 and "8 (integer) of node set item" in done.stderr and ", and the bytes of" not in done.stdout
        gone, = before - set(keys_in(tmp_path))
        assert gone == (1, 8)
        done = run(s, "9", "7")
        assert done.exit_code == 0, done
        assert before - set(keys_in(tmp_path)) == {gone, 9, (1, 7)}
        assert run(s, "8", "--node-set", "user", "--key-type", "text").exit_code == 0
        assert set(keys_in(tmp_path)) == {8, (1, "8")}


@pytest.mark.kafka
def test_it_says_what_it_waits_for_and_the_same_command_continues(kafka, tmp_path):
    topic = f"waits-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 1)
    s = settings(tmp_path, kafka__bootstrap_servers=kafka.bootstrap_servers, stream__time_unit="s", ingest__idle_timeout_seconds=0,
                 sources=[{"topic": topic, "time": "s", "fields": {"src": "who", "dst": "what", "time": "at"}}])
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    for number in range(20):
        producer.send(topic, json.dumps({"who": f"user:{number % 3}", "what": "item", "at": START + number}).encode())
    producer.close()
    with ingesting(s) as loop:
        wait_for(lambda: loop._log.num_edges == 20)
        # All topics have a form of their own: an operator chooses.
        done = run(s, "user:1")
        assert done.exit_code == 2 and f"--topic {topic}" in done.stderr and "content-type: application/vnd.streamd.event+json" in done.stderr
        assert "user:1" in keys_in(tmp_path)
        assert run(s, "user:1", "--topic", "other").exit_code == 2

        # A trainer that has windows to learn, and a server that does not run.
        Heartbeat(tmp_path, "train").touch("waiting", edge=0)
        write_hold(tmp_path, "train", Hold(0, 0))
        write_hold(tmp_path, "serve", Hold(5, 5))
        done = run(s, "user:1", "--topic", topic, "--wait", "3")
        assert done.exit_code == 1 and "user:1" not in keys_in(tmp_path)
        for part in ("for serve, which does not run", "for train to learn 2 windows", "2025-06-15 16:00 UTC and of 2025-06-15 17:00 UTC",
                     "no event has come after the delete yet", "Run the same command again"):
            assert part in done.stdout, done
        assert asked_to_compact(tmp_path) == 20
        sent = loop._letters.num_letters
        # The key is gone already, and the request is not: another wait, of which nothing is done.
        write_hold(tmp_path, "train", Hold(20, 20))
        write_hold(tmp_path, "serve", Hold(20, 10))
        done = run(s, "user:1", "--wait", "1")
        assert done.exit_code == 1 and "an erasure that is still open has removed it; this continues it" in done.stderr
        assert "waiting for serve: 100 %" not in done.stderr and "100 %, 0 deletes" not in done.stderr, done.stderr
        write_hold(tmp_path, "serve", Hold(20, 20))
        done = run(s, "user:1")
        assert done.exit_code == 0 and "found 0 times" in done.stdout and loop._letters.num_letters == sent


@pytest.mark.kafka
def test_letters_with_an_erased_key_go_although_the_log_holds_it_no_more(kafka, tmp_path):
    """The key's bytes are gone, so that no compaction knows it: an event that is refused later brings it back, in a letter only."""
    topic = f"letters-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 1)
    s = settings(tmp_path, kafka__bootstrap_servers=kafka.bootstrap_servers, kafka__topics=(topic,), stream__time_unit="s")
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    for user in ("user:1", "user:2"):
        producer.send(topic, own(user, "item")[0])
    producer.flush()
    with ingesting(s) as loop:
        wait_for(lambda: loop._log.num_edges == 2)
        assert run(s, "user:1").exit_code == 0
        # A second delete matches nothing; an edge is refused for its key, of nodes that the log never held.
        for value in ({"type": "delete", "node": "user:1"}, {"src": "user:1", "dst": 1.5}, {"src": "user:3", "dst": 1.5}, {"src": "user:2", "dst": 1.5}):
            producer.send(topic, json.dumps(value).encode())
        producer.close()
        wait_for(lambda: letters(tmp_path).count(b"user:2") == 1)
        found = run(s, "user:1", command="verify --deleted")
        assert found.exit_code == 1 and "found: key 1 in deadletter/current.jsonl" in found.stderr
        done = run(s, "user:1", "user:3")
        assert done.exit_code == 0, done
        assert "removed 3 dead letters" in done.stdout and "found 0 times" in done.stdout
        assert letters(tmp_path).count(b"user:") == 1

        # Ingest writes to the file that replaced its own, and the next replacement keeps what it wrote.
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
        producer.send(topic, json.dumps({"src": "user:4", "dst": 1.5}).encode())
        producer.send(topic, json.dumps({"src": "user:5", "dst": 1.5}).encode())
        producer.close()
        wait_for(lambda: b"user:5" in letters(tmp_path))
        assert run(s, "user:5").exit_code == 0
        assert b"user:4" in letters(tmp_path) and b"user:5" not in letters(tmp_path)


def test_letters_of_older_settings_go_and_those_of_a_topic_have_a_remedy(tmp_path):
    write_log(tmp_path, *stream(50))
    old = LocalDeadLetters(tmp_path / "deadletter", 10**6)
    old.add(DeadLetter("t", 0, 1, 0, "bad_time", "", 5, b'{"src": "nobody", "dst": 1}'))
    old.flush()
    s = settings(tmp_path, kafka__bootstrap_servers="127.0.0.1:1", ingest__dead_letter_topic="letters")
    done = run(s, "nobody")
    assert done.exit_code == 0 and "removed 1 dead letter;" in done.stdout, done
    assert "kafka-delete-records.sh --bootstrap-server 127.0.0.1:1" in done.stdout and "--topic letters --add-config retention.ms" in done.stdout


def test_an_erasure_waits_for_another_process_that_removes_letters(tmp_path):
    write_log(tmp_path, *stream(50))
    store = LocalDeadLetters(tmp_path / "deadletter", 10**6)
    store.add(DeadLetter("t", 0, 1, 0, "bad_time", "", 5, b'{"src": "nobody", "dst": 1}'))
    other = LetterPurge(tmp_path / "deadletter").remove(["somebody"])
    next(other)
    done = run(settings(tmp_path), "nobody", "--wait", "0.1")
    assert done.exit_code == 1 and "waiting for another process that removes some. Run the same command again." in done.stdout
    request = ErasureRequests(tmp_path).add(["nobody"], "").id
    for _ in range(2):
        ErasureWork(tmp_path).step(settings(tmp_path))
    assert "waiting for another process" in ErasureRequests(tmp_path).read(request).waits_for
    other.close()
    ErasureWork(tmp_path).step(settings(tmp_path))
    assert ErasureRequests(tmp_path).read(request).state == "done" and run(settings(tmp_path), "nobody").exit_code == 0


def test_a_proof_names_each_file_once_as_often_as_its_total_and_the_remedy(tmp_path):
    write_log(tmp_path, *stream(50))
    old = LocalDeadLetters(tmp_path / "deadletter", 10**6)
    for n in range(3):
        old.add(DeadLetter("t", 0, n, 0, "bad_time", "user:10000 is late", 5, b'{"src": "user:10000", "dst": 1}'))
    old.flush()
    (tmp_path / "left").write_text("user:10000")
    done = run(settings(tmp_path), "user:10000", command="verify --deleted")
    assert done.exit_code == 1 and [line.split(",")[0] for line in done.stderr.splitlines() if line.startswith("found")] == [
        "found: key 1 in deadletter/current.jsonl", "found: key 1 in left"], done
    assert "found 2 times. Dead letters: `streamd erase` removes them. Other files" in done.stdout


@pytest.mark.parametrize(("keys", "says"), [(("u3",), "; the bytes of 1 key in other files"), (("1234567", "u3", "nobody"), "; the bytes of 2 keys in other files"), (("nobody",), "")])
@pytest.mark.parametrize("command", ["verify --deleted", "erase"])
def test_a_proof_names_the_bytes_that_it_does_not_search(tmp_path, keys, says, command):
    write_log(tmp_path, *stream(50))
    done = run(settings(tmp_path), *keys, command=command) if command == "erase" else run(settings(tmp_path), keys[0], *(w for key in keys[1:] for w in ("--deleted", key)), command=command)
    assert done.exit_code == 0 and "Not searched: records in Kafka" in done.stdout, done
    assert says in done.stdout and bool(says) == ("; the bytes of" in done.stdout)


def test_a_search_names_what_is_pending_and_fails(tmp_path):
    write_log(tmp_path, *stream(50))
    s = settings(tmp_path)
    assert run(s, "u3", command="verify --deleted").exit_code == 0
    ask_to_compact(tmp_path, 50)
    begin_hold(tmp_path, "serve", 10)
    done = run(s, "u3", command="verify --deleted")
    assert done.exit_code == 1 and "found 0 times; an erasure is pending. Not searched: " in done.stdout
    assert "pending: an erasure is still open, so not all deleted data is gone yet: waiting for serve, which does not run" in done.stderr
    compact_done(tmp_path)
    ErasureRequests(tmp_path).add(["u3"], "")
    done = run(s, "u3", command="verify --deleted")
    assert done.exit_code == 1 and "pending: 1 request of POST /v1/erase has not ended yet" in done.stderr


def test_without_ingest_nothing_is_sent_and_keys_that_the_log_lacks_are_looked_for(tmp_path):
    write_log(tmp_path, *stream(50))
    s = settings(tmp_path, kafka__bootstrap_servers="127.0.0.1:1")
    done = run(s, "n:3")
    assert done.exit_code == 2 and "No ingest runs" in done.stderr
    done = run(s, "n:3", "nobody")
    assert done.exit_code == 2 and "holds no key nobody" in done.stderr
    done = run(s, "nobody")
    assert done.exit_code == 0 and "nothing was deleted" in done.stdout and "1 key looked up in 35 rows of the key table" in done.stdout
    with pytest.raises(StreamdError, match="holds no log"):
        Erasure.open(tmp_path / "none", [])

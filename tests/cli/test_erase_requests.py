"""Requests of `POST /v1/erase` on a real broker, each step by a process that knows only what the one before it has written."""

import json
import uuid

import pytest
from kafka import KafkaProducer

from streamd.cli.erasure_work import ErasureWork
from streamd.errors import KafkaError
from streamd.eventlog.upkeep.holds import (
    Hold,
    ask_to_compact,
    asked_to_compact,
    compact_done,
    write_hold,
)
from streamd.events import SetKey
from streamd.store.erasure_requests import ENDED, FOLDER, KEPT_ENDED, OPEN, ErasureRequests
from streamd.telemetry.heartbeat import Heartbeat
from tests.builders import settings, stream, write_log
from tests.cli.test_erase import SETS, START, ingesting, keys_in, letters, run, wait_for


def settle(s, *ids, state=None, at_most=60):
    """Step until all requests have ended, or one is in a state, each step by new work, as after a kill. Returns: the last request."""
    requests = ErasureRequests(s.data_dir)

    def is_settled():
        ErasureWork(s.data_dir).step(s)
        found = [requests.read(one) for one in ids]
        return any(one.state == state for one in found) if state else all(one.ended_at for one in found)
    wait_for(is_settled, at_most)
    return requests.read(ids[-1])


@pytest.mark.kafka
def test_requests_are_worked_on_over_restarts_for_each_type_of_key_and_node_set(kafka, tmp_path):
    topic = f"requests-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 2)
    s = settings(tmp_path, kafka__bootstrap_servers=kafka.bootstrap_servers, kafka__topics=(topic,), stream__time_unit="s", **SETS)
    events = [{"edge_set": "views", "src": src, "dst": dst, "time": START} for src in (8, "8", "customer:1") for dst in (8, "article:1", 7)]
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        producer.send(topic, json.dumps(events).encode())
        producer.send(topic, b'{"edge_set": "views", "src": "customer:1", "dst": 1.5}')
    requests = ErasureRequests(tmp_path)
    with ingesting(s) as loop:
        wait_for(lambda: loop._log.num_edges == len(events) and b"customer:1" in letters(tmp_path))
        # Two at once for one node, one of another type and set, and nodes that the log never held.
        made = [requests.add(keys, "").id for keys in (["customer:1", 8], ["customer:1"], [SetKey(1, 8), SetKey(1, "nobody")], ["nobody:2"])]
        last = settle(s, *made)
        assert [requests.read(one).state for one in made] == ["done"] * 4, [requests.read(one) for one in made]
        assert [requests.read(one).num_unknown for one in made] == [0, 0, 1, 1] and "found 0 times" in last.proof
        assert set(keys_in(tmp_path)) == {"8", SetKey(1, "article:1"), SetKey(1, 7)}
        assert letters(tmp_path) == b"", "no delete was sent twice, and the record that named the customer is gone"

        # Nothing of the requests has the keys any more, and the same once more finds nothing to delete.
        assert requests.num_open == 0 and not [p for p in tmp_path.rglob("*") if p.is_file() and b"customer:1" in p.read_bytes()]
        again = settle(s, requests.add(["customer:1"], "").id)
        assert again.state == "done" and again.num_unknown == 1 and letters(tmp_path) == b""

        # An event of the user that was refused since is in a letter only.
        with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            producer.send(topic, b'{"edge_set": "views", "src": "customer:1", "dst": 1.5}')
        wait_for(lambda: b"customer:1" in letters(tmp_path))
        assert settle(s, requests.add(["customer:1"], "").id).state == "done" and letters(tmp_path) == b""

        # A user who comes back between delete and proof is found, and the CLI finds a request that is open.
        one = requests.add([SetKey(1, "article:1")], "").id
        assert run(s, "article:1", command="verify --deleted").stderr.count(f"found: key 1 in {FOLDER}/{OPEN}/{one}") == 1
        settle(s, one, state="compacting")
        with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            producer.send(topic, json.dumps(events[1] | {"src": "x"}).encode())
        wait_for(lambda: SetKey(1, "article:1") in keys_in(tmp_path))
        came_back = settle(s, one)
        assert came_back.state == "found" and (1, "nodes.keys") in came_back.found and came_back.keys == []


@pytest.mark.kafka
def test_a_request_says_what_it_waits_for_and_when_it_cannot_go_on(kafka, tmp_path, monkeypatch):
    topic = f"mapped-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 1)
    s = settings(tmp_path, kafka__bootstrap_servers=kafka.bootstrap_servers, stream__time_unit="s", ingest__idle_timeout_seconds=0,
                 sources=[{"topic": topic, "time": "s", "fields": {"src": "who", "dst": "what", "time": "at"}}])
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for number in range(20):
            producer.send(topic, json.dumps({"who": f"user:{number % 5}", "what": "item", "at": START + number}).encode())
    requests = ErasureRequests(tmp_path)
    with ingesting(s) as loop:
        wait_for(lambda: loop._log.num_edges == 20)
        failed = settle(s, requests.add(["user:1"], "").id)
        assert failed.state == "failed" and f"--topic {topic}" in failed.waits_for and "user:1" in keys_in(tmp_path)

        # A trainer that has windows to learn, and a broker that is away for a while.
        Heartbeat(tmp_path, "train").touch("waiting", edge=0)
        write_hold(tmp_path, "train", Hold(0, 0))
        first = requests.add(["user:1"], topic).id
        with monkeypatch.context() as broken:
            broken.setattr("streamd.cli.erasure_work.send_deletes", lambda *_: (_ for _ in ()).throw(KafkaError("no broker answers")))
            ErasureWork(s.data_dir).step(s)
        assert requests.read(first).waits_for == "no broker answers" and requests.read(first).rows is not None
        wait_for(lambda: ErasureWork(s.data_dir).step(s) and requests.read(first).state == "compacting")
        ErasureWork(s.data_dir).step(s)
        assert "for train to learn 2 windows, which end at event times of 2025-06-15 16:00 UTC" in requests.read(first).waits_for

        # Another request, at the same event, whose compaction somebody calls done too early or asks for lower.
        second = requests.add(["user:2"], topic).id
        settle(s, second, state="compacting")
        compact_done(tmp_path)
        ErasureWork(s.data_dir).step(s)
        assert asked_to_compact(tmp_path) == 20 and requests.read(second).state == "compacting"
        ask_to_compact(tmp_path, 3)
        ErasureWork(s.data_dir).step(s)
        assert asked_to_compact(tmp_path) == 20
        write_hold(tmp_path, "train", Hold(20, 20))
        assert settle(s, first, second).state == requests.read(first).state == "done"
        assert loop._letters.num_letters == 0 and {"user:1", "user:2"}.isdisjoint(keys_in(tmp_path))
    third = requests.add(["user:3"], topic).id
    ErasureWork(s.data_dir).step(s)
    assert "the deletes are in Kafka, and ingest has not read them" in requests.read(third).waits_for


def test_what_a_kill_leaves_of_a_write_goes_and_old_requests_too(tmp_path):
    write_log(tmp_path, *stream(50))
    s = settings(tmp_path)
    requests = ErasureRequests(tmp_path)
    one = requests.add(["n:99"], "")
    scratch = requests.folder / OPEN / ".0.tmp"
    scratch.write_bytes(b"n:99")
    ended = requests.folder / ENDED
    ended.mkdir()
    for number in range(KEPT_ENDED):
        (ended / f"{number:032x}").write_bytes(b"{}")
    work = ErasureWork(s.data_dir)
    assert not scratch.exists() and requests.num_open == 1
    wait_for(lambda: not work.step(s))
    assert requests.read(one.id).state == "done" and requests.read("0" * 32) is None and len(list(ended.iterdir())) == KEPT_ENDED
    work.run(s)

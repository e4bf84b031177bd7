"""Records of topics in shapes of their own, written by the Kafka clients that others use: `make contract`."""

import base64
import json
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from streamd.clock import SystemClock
from streamd.exchange.sample import judge, read_sample
from tests.builders import settings

pytestmark = [pytest.mark.contract, pytest.mark.kafka]
CLIENTS = Path(__file__).parent / "clients"
KAFKAJS = "kafkajs@2.2.4"
FIELDS = {"src": {"path": "who", "prefix": "user:"}, "dst": "item.id", "time": "at"}
AT = 1_795_000_000_000
EDGES = [{"src": f"user:{i}", "dst": f"b{i % 2}", "time": (AT + i) * 1000} for i in range(3)]
DELETE = {"type": "delete", **EDGES[1]}


def rows():
    return [{"who": i, "item": {"id": f"b{i % 2}"}, "at": AT + i} for i in range(3)]


def change(op, row):
    return json.dumps({"op": op, "before": row if op == "d" else None, "after": None if op == "d" else row}).encode()


def arrow():
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(rows())
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def binary(row):
    """A CloudEvent whose attributes are headers."""
    attributes = {"ce_specversion": b"1.0", "ce_type": b"view", "ce_source": b"/shop", "ce_id": b"1"}
    return b"k", json.dumps(row).encode(), [*attributes.items(), ("content-type", b"application/json")]


def structured(row, **data):
    event = {"specversion": "1.0", "type": "view", "source": "/shop", "id": "1", **(data or {"data": row})}
    return None, json.dumps(event).encode(), [("content-type", b"application/cloudevents+json; charset=UTF-8")]


# form: settings of the source, records as (key, value, headers), events that they become.
FORMS = {
    "json": ({}, [(None, json.dumps(row).encode(), [("trace", b"\xff")]) for row in rows()], EDGES),
    "array": ({}, [(b"k", json.dumps(rows()).encode(), [])], EDGES),
    "ndjson": ({"format": "ndjson"}, [(None, "\n".join(map(json.dumps, rows())).encode(), [])], EDGES),
    "arrow": ({"format": "arrow"}, [(None, arrow(), [])], EDGES),
    "cloudevents": ({"envelope": "cloudevents"}, [
        binary(rows()[0]), structured(rows()[1]),
        structured(None, data_base64=base64.b64encode(json.dumps(rows()[2]).encode()).decode())], EDGES),
    "debezium": ({"envelope": "debezium"}, [
        *((b'{"id": 1}', change("c", row), []) for row in rows()), (b'{"id": 1}', change("d", rows()[1]), []), (b'{"id": 1}', None, [])],
        [*EDGES, DELETE]),
    "connect": ({"envelope": "connect"}, [
        (None, json.dumps({"schema": {"type": "struct"}, "payload": row}).encode(), []) for row in rows()], EDGES),
}


def in_hex(records):
    def text(content):
        return None if content is None else content.hex()
    return json.dumps([[text(key), text(value), [[name, text(content)] for name, content in headers]] for key, value, headers in records])


def run(command, given=None):
    done = subprocess.run(command, input=given, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def by_aiokafka(folder, brokers, topic, records):
    run([f"{sys.prefix}-contract-producers/bin/python", CLIENTS / "send_aiokafka.py", brokers, topic], in_hex(records).encode())


def by_kafkajs(folder, brokers, topic, records):
    package = Path(f"{sys.prefix}-contract-producers") / "node_modules/kafkajs"
    if not package.exists():
        run(["npm", "install", "--silent", "--prefix", package.parents[1], KAFKAJS])
    run(["node", CLIENTS / "send_kafkajs.js", package, brokers, topic], in_hex(records).encode())


def by_kcat(folder, brokers, topic, records):
    """One call a record, since headers are those of a call; `-Z` makes an empty value null."""
    for number, (key, value, headers) in enumerate(records):
        file = folder / f"{topic}-{number}"
        file.write_bytes(value or b"")
        named = [part for name, content in headers for part in (b"-H", name.encode() + b"=" + content)]
        command = ["kcat", "-P", "-b", brokers, "-t", topic, "-z", "lz4", *named, *(["-k", key] if key else [])]
        if value is None:
            run([*command, "-Z", "-K", "|"], key + b"|\n")
        else:
            run([*command, file])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("send", [by_aiokafka, by_kafkajs, by_kcat], ids=lambda send: send.__name__.removeprefix("by_"))
def test_what_clients_of_others_write_becomes_the_same_events_producers(tmp_path, kafka, send, form):
    if send is by_kcat and not shutil.which("kcat"):
        pytest.skip("kcat is not installed")
    source, records, events = FORMS[form]
    topic = f"{form}-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 1)
    send(tmp_path, kafka.bootstrap_servers, topic, records)
    s = settings(tmp_path, kafka__bootstrap_servers=kafka.bootstrap_servers,
                 sources=[{"topic": topic, "time": "ms", "fields": FIELDS, **source}])
    verdict = judge(s, read_sample(s, topic, 100, SystemClock()), SystemClock())
    assert [json.loads(j.event) if j.event else j.error for j in verdict.judged] == events

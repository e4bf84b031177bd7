"""A recorded sequence of requests and what a server must answer: `python -m tests.server.recorded` renews it.

The log is seeded and the weights are drawn by their names, so that no answer depends on how anything is learned.
"""

import dataclasses
import json
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.graph.facts.columns import FACT_NAMES
from streamd.models import build_model
from streamd.models.memory.edge_rows import EdgeRows
from streamd.models.memory.files import MemoryFiles
from streamd.registry import Registry
from streamd.registry.candidate import Candidate, TrainResult
from streamd.windows import Window, closed_chunks
from tests.builders import HOUR, SECOND, batch, settings, stream
from tests.server.world import World, wait

FILE = Path(__file__).with_name("recorded.json")
SCHEMA = Schema(2, 2, 1)
USERS, ITEMS, EDGES, SEEN = 20, 15, 480, 460
GONE = 6
"""The node that is deleted; its key is asked for as any other."""
KEYS = [*(f"u:{i}" for i in range(USERS - 2)), 7, "plain", *(f"i:{i}" for i in range(ITEMS))]
SMALL = {"stream__edge_feature_dim": 2, "stream__node_feature_dim": 2, "stream__label_dim": 1,
         "server__max_candidates": 8, "server__max_batch": 4}
TGN = SMALL | {"model__labels": "classification"}
TGAT = SMALL | {"model__name": "tgat", "model__half_lives_seconds": (10, 100, 1000, 5000, 9000)}
PATIENCE_SECONDS = 120
"""Kernels may have to be compiled on the way."""
VOLATILE = {"now", "troubles", "events_per_second", "pulse", "answered", "roles", "time_of_move", "created", "last_inference", "ns"}


def make_log(path):
    """Writes a log with a delete, node features and labels. Returns: its edges, of which SEEN are in."""
    src, dst, time = stream(EDGES, USERS, ITEMS, seed=3)
    dst[src == GONE] = USERS + 1
    writer = LogWriter(path, SCHEMA, 100_000)
    writer.keys.update({k: i for i, k in enumerate(KEYS)})
    for first in range(0, SEEN, 92):
        end = min(first + 92, SEEN)
        rows = batch(SCHEMA, src[first:end], dst[first:end], time[first:end], KEYS if first == 0 else (), first)
        at = np.arange(first, first + 5) % len(KEYS)
        rows = dataclasses.replace(
            rows, node_F=at, node_row_F=np.full(5, end - first), node_edge_F=np.full(5, end - first),
            node_values_F=np.stack([np.sin(at), np.cos(at)], 1).astype(np.float32))
        writer.commit(rows, Progress(), int(time[end - 1]))
    gone = np.zeros(1, DELETION)
    gone["src"], gone["dst"], gone["time"] = GONE, -1, -1
    writer.keys.pop(KEYS[GONE])
    writer.commit(dataclasses.replace(empty_batch(SCHEMA), deletions_X=gone), Progress(), writer.watermark)
    writer.close()
    src[src == GONE] = 0
    return src, dst, time


def append(path, src, dst, time):
    """Writes the rest of the edges."""
    writer = LogWriter(path, SCHEMA, 100_000)
    writer.commit(batch(SCHEMA, src[SEEN:], dst[SEEN:], time[SEEN:], (), SEEN), Progress(), int(time[-1]))
    writer.close()


def drawn_model(chosen, schema=SCHEMA):
    """A model with weights drawn by their names."""
    model = build_model(chosen, schema, 0)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            drawn = np.random.default_rng(zlib.crc32(name.encode())).normal(size=tuple(tensor.shape))
            is_statistic = "stats" in name or not tensor.ndim
            scale = 0.15 if tensor.ndim else SECOND
            tensor.copy_(torch.tensor(scale * (np.abs(drawn) if is_statistic else drawn)))
    return model


def publish(path, values, edge, beside=None):
    """Makes a version at an edge, with weights drawn by their names. Returns: its name."""
    chosen = settings(path, **values)
    log = LogReader.open(path)
    model = drawn_model(chosen.model)
    memory = model.new_memory()
    width, size = chosen.windows.width_seconds * SECOND, chosen.model.memory_chunk
    times = log.edges(0, edge)[2]
    for first, end in closed_chunks(times, int(times[-1]), width, size):
        model.advance(memory, EdgeRows.of(log, first, end))
    window = Window(int(times[-1]) // HOUR * HOUR, (int(times[-1]) // HOUR + 1) * HOUR, 0, memory.edge)
    scores = {name: {"mrr": mrr, "mrr_known": mrr, "ap": mrr / 2} for name, mrr in (("live", 0.5), ("rule", 0.375), ("edgebank", 0.25))}
    return Registry.of(chosen).publish(Candidate(
        window=window, edge=memory.edge, seq=3, weights=model.arrays(), memory=lambda: MemoryFiles(path / "made").store(memory),
        memory_us=memory.now_us, parent="", scores=scores, facts=FACT_NAMES, schema=log.state.schema,
        model=chosen.model, training=chosen.training, window_seconds=chosen.windows.width_seconds,
        learned=TrainResult(loss=0.5, finite=True, tail_before=0.25, tail_after=0.5, num_tail=50)), beside).version


def questions(later):
    """Requests of every kind: method, path, JSON body or None. later: a time behind all events, microseconds."""
    yield from answers(later)
    yield from inference(later)
    for path in ("/v1/models", "/v1/nodes?prefix=u", "/status.json", "/readyz"):
        yield "GET", path, None


def answers(later):
    """Requests for scores, recommendations, embeddings and labels."""
    some = ["i:0", "i:1", "i:7", "i:9"]
    strange = ["i:2", "never seen", 7, 8, "7", "u:6", "é☃"]
    score = [
        {"src": "u:3", "dst": some}, {"src": "u:4", "dst": some, "time": 5}, {"src": "u:5", "dst": some, "time": later},
        {"src": 7, "dst": strange}, {"src": "plain", "dst": strange, "time": later + HOUR}, {"src": "nobody", "dst": strange},
        {"src": "u:6", "dst": ["i:1"]}, {"src": "u:1", "dst": ["i:3", "i:3"], "time": 2**61}]
    recommend = [
        {"src": "u:3"}, {"src": "u:3", "k": 3, "exact": True}, {"src": "u:3", "exclude_seen": True},
        {"src": "u:8", "kind": "u", "k": 4}, {"src": "u:8", "kind": "i", "k": 50, "exact": True},
        {"src": "u:8", "kind": "no such"}, {"src": "nobody", "k": 2}, {"src": "nobody", "k": 2, "exact": True},
        {"src": "u:9", "k": 5, "exclude_seen": True, "exact": True}, {"src": "u:9", "k": 5, "time": later}]
    partners = [{"dst": "i:7", "features": [1, 2]}, {"dst": "i:9", "features": [0, 1], "time": later}]
    new = {"src": "new here", "features": [0.5, -0.5], "context": partners}
    score += [new | {"dst": strange}, new | {"dst": some, "time": later + HOUR}, new | {"src": "u:3", "dst": some}]
    recommend.append(new | {"k": 4})
    for body in score:
        yield "POST", "/v1/score", body
    yield "POST", "/v1/score/batch", {"requests": score[:4]}
    for body in (score[0] | {"dst": "i:0"}, score[4] | {"dst": "u:6"}, {"src": "u:3", "dst": "i:1", "time": later}):
        yield "POST", "/v1/explain", body
    for body in recommend:
        yield "POST", "/v1/recommend", body
    yield "POST", "/v1/recommend/batch", {"requests": recommend[:3]}
    yield "POST", "/v1/recommend/batch", {"requests": [recommend[1], recommend[4], recommend[8]]}
    for body in ({"node": "i:3", "k": 4}, {"node": "i:3", "by": "partners"}, {"node": "nobody", "by": "partners"},
                 {"node": "i:3", "k": 50, "only": ["i:4", "u:6", "i:5"]}):
        yield "POST", "/v1/similar", body
    for kind in ("embeddings", "labels"):
        for node in ("u:3", "i:4", "u:6", "nobody", "7", "7?integer=true", "x?integer=true", f"{2**70}?integer=true"):
            yield "GET", f"/v1/{kind}/{quote(node, safe='?=:')}", None
        yield "POST", f"/v1/{kind}", {"nodes": ["u:3", 7, "nobody", "u:3"]}
        yield "POST", f"/v1/{kind}", {"nodes": ["u:3"] * 5}


def inference(later):
    """Requests of the Open Inference Protocol."""
    infer = "/v2/models/streamd/infer"
    src = {"name": "src", "shape": [2], "datatype": "BYTES", "data": ["u:3", "nobody"]}
    dst = {"name": "dst", "shape": [2, 3], "datatype": "BYTES", "data": [["i:0", "i:1", "i:2"], ["i:0", "u:6", "?"]]}
    time = {"name": "time", "shape": [2], "datatype": "INT64", "data": [later, 0]}
    yield "POST", infer, {"inputs": [src, dst]}
    yield "POST", infer, {"id": "x", "inputs": [src, dst, time], "parameters": {"binary_data_output": True}}
    yield "POST", infer, {"inputs": [dst, src], "outputs": [{"name": "known"}]}
    yield "POST", infer, {"inputs": [src]}
    yield "POST", infer, {"inputs": [src, dst], "outputs": [{"name": "other"}]}
    yield "POST", infer, {"inputs": [src | {"shape": [3]}, dst]}
    yield "POST", "/v2/models/streamd/versions/none/infer", {"inputs": [src, dst]}
    yield "POST", "/v2/models/other/infer", {"inputs": [src, dst]}
    for path in ("", "/models/streamd", "/models/streamd/config", "/models/streamd/stats", "/models/stats",
                 "/models/streamd/ready", "/health/live", "/health/ready", "/models/streamd/versions/none/ready"):
        yield "GET", f"/v2{path}", None
    yield "POST", "/v2/repository/index", {}
    yield "POST", "/v2/repository/index", {"ready": True}


def wrong():
    """Requests that are refused."""
    yield "POST", "/v1/score", {"src": "u:1"}
    yield "POST", "/v1/score", {"src": "u:1", "dst": []}
    yield "POST", "/v1/score", {"src": 1.5, "dst": ["i:1"]}
    yield "POST", "/v1/score", {"src": "u:1", "dst": ["i:1"] * 9}
    yield "POST", "/v1/score", {"src": "u:1", "dst": ["i:1"], "time": -1}
    yield "POST", "/v1/score/batch", {"requests": [{"src": "u:1", "dst": ["i:1"]}] * 5}
    yield "POST", "/v1/recommend", {"src": "u:1", "k": 0}
    yield "POST", "/v1/explain", {"src": "u:1", "dst": ["i:1"]}
    yield "POST", "/v1/events", {"events": [{"src": "u:1", "dst": "i:1", "time": 5, "features": [1.0]}]}
    yield "POST", "/v1/models/1-1/promote", {"why": "to see"}
    yield "GET", "/v1/score", None
    yield "GET", "/v1/nothing", None


def told(answer):
    """What is recorded of an answer: no times, process ids or headers but its type."""
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if kind == "application/octet-stream":
        length = int(answer.headers["Inference-Header-Content-Length"])
        content, rest = json.loads(answer.content[:length]), answer.content[length:]
        for output in content["outputs"]:
            size = output["parameters"]["binary_data_size"]
            count, mark = (size // 4, "f") if output["datatype"] == "FP32" else (size, "?")
            output["data"], rest = struct.unpack(f"<{count}{mark}", rest[:size]), rest[size:]
    else:
        content = answer.json()
    return {"status": answer.status_code, "type": kind, "answer": steady(content)}


def steady(content):
    """The same without what differs from run to run."""
    if isinstance(content, dict):
        if {"action", "who"} <= content.keys():
            content = {"time_of_move" if k == "time" else k: v for k, v in content.items()}
        return {k: steady(v) for k, v in content.items() if k not in VOLATILE}
    return [steady(v) for v in content] if isinstance(content, (list, tuple)) else content


def ask_all(world, phase, asked, sequence):
    """Adds the questions of a phase, with their answers, to a sequence."""
    for method, path, body in asked:
        answer = world.client.request(method, path, json=body)
        sequence.append({"phase": phase, "ask": f"{method} {path} {json.dumps(body)}", **told(answer)})


def play(path):
    """Runs a server through the rule, two versions of different settings, new events and a rollback.

    Returns: the answers, in order.
    """
    src, dst, time = make_log(path)
    later, sequence = int(time[-1]) + 30 * SECOND, []
    world = World.of(path, settings(path, **TGN)).start()
    ask_all(world, "rule", [*questions(later), *wrong()], sequence)

    first = publish(path, TGN, 300)
    wait(lambda: world.engine.status.version == first, PATIENCE_SECONDS)
    ask_all(world, "tgn", questions(later), sequence)

    append(path, src, dst, time)
    wait(lambda: world.engine.status.edge == EDGES, PATIENCE_SECONDS)
    for body in ({"src": "u:3", "dst": ["i:0", "i:7"]}, {"src": "u:3", "dst": ["i:0", "i:7"], "time": later}):
        sequence.append({"phase": "new events", **told(world.client.post("/v1/score", json=body))})

    second = publish(path, TGAT, 400, beside=first)
    moved = world.client.post(f"/v1/models/{second}/promote", json={"why": "to see it"})
    wait(lambda: world.engine.status.version == second, PATIENCE_SECONDS)
    sequence.append({"phase": "promoted", **told(moved)})
    ask_all(world, "tgat", questions(later), sequence)

    moved = world.client.post("/v1/models/rollback", json={"why": "and back"})
    wait(lambda: world.engine.status.version == first, PATIENCE_SECONDS)
    sequence.append({"phase": "rolled back", **told(moved)})
    ask_all(world, "tgn again", answers(later), sequence)
    described = world.client.get("/openapi.json").json()["paths"]
    world.stop()
    routes = sorted(f"{method.upper()} {route}" for route, known in described.items() for method in known)
    return [*sequence, {"phase": "routes", "answer": routes}]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="streamd-recorded-") as folder:
        sequence = play(Path(folder))
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in sequence)
    FILE.write_text(f"[\n{lines}\n]\n")
    print(f"{len(sequence)} answers recorded in {FILE}", file=sys.stderr)


if __name__ == "__main__":
    main()

"""/v1/recommend with filters, diversity and reasons next to the plain request of the same source in the same run, on a shop of 20,000
items with a version of the default settings; and /v1/similar."""

import dataclasses
import tempfile
import time
from pathlib import Path

import numpy as np

from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, empty_batch
from streamd.settings.loading import load_settings, schema_of
from streamd.settings.sets import FeatureSettings, SetSettings
from tests.benchmarks.measure import Row, pick_size
from tests.builders import HOUR, batch
from tests.server.world import World, wait

ROUNDS, USERS, ITEMS, EDGES = pick_size((200, 5_000, 20_000, 60_000), (3, 100, 2_000, 3_000))
FEATURES = {"category": FeatureSettings(categories=tuple(f"c{i}" for i in range(100))), "price": FeatureSettings(type="number"),
            "in_stock": FeatureSettings(type="bool")}
PROMISE, NEW_SOURCE = 1.3, 3.0
"""Times the plain request; of a source that the request brings."""


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        chosen, _ = load_settings(None, {
            "data_dir": path, "stream.time_unit": "us", "bootstrap.max_events": 0, "graph.node_sets": {"default": SetSettings(features=FEATURES)}}, {})
        _write(path, schema_of(chosen))
        world = World.of(path, chosen)
        world.train(1)
        world.run()
        wait(lambda: world.engine.status.ready and world.engine.status.version != "rule", 600)
        requests = _requests()
        seconds = np.zeros((ROUNDS, len(requests)))

        # In turn, so that what else the machine does falls on all.
        rng = np.random.default_rng(0)
        for i in range(-20, ROUNDS):
            user, item = f"user:{rng.integers(USERS)}", f"item:{rng.integers(ITEMS)}"
            # Another one begins each round: the first about a user computes embeddings that the others find.
            for n in np.roll(np.arange(len(requests)), i):
                body = list(requests.values())[n]
                route = "similar" if "by" in body else "recommend"
                begun = time.perf_counter()
                answer = world.client.post(f"/v1/{route}", json={"node" if "by" in body else "src": item if "by" in body else user} | body)
                if i >= 0:
                    seconds[i, n] = time.perf_counter() - begun
                assert answer.status_code == 200, answer.text
                assert len(answer.json()["similar" if "by" in body else "scores"]) == body["k"] or body.get("by") == "partners"
        world.stop()
    ms = 1e3 * np.percentile(seconds, 50, axis=0)
    plain = {10: ms[0], 100: ms[1]}
    times = [NEW_SOURCE if "context" in body else PROMISE for body in requests.values()]
    return [Row(f"/v1/recommend, {name}: p50", float(ms[n]), "ms", float(plain[body["k"]] * times[n]), f"{times[n]} x plain")
            for n, (name, body) in enumerate(requests.items())]


def _requests() -> dict[str, dict]:
    some = [f"item:{i}" for i in range(0, ITEMS, 40)]
    parts = {"exclude": some, "where": {"in_stock": True, "price": {"lt": 80}}, "diversity": {"feature": "category", "max_per_value": 2},
             "reasons": True}
    context = [{"dst": f"item:{7 * i}"} for i in range(64)]
    return {
        "k 10": {"k": 10}, "k 100": {"k": 100},
        "500 keys excluded": {"k": 10, "exclude": some}, "only 500 keys": {"k": 10, "only": some},
        "a filter that leaves 40 %": {"k": 10, "where": parts["where"]}, "one that leaves 1 %": {"k": 10, "where": {"category": "c7"}},
        "at most 2 of a category": {"k": 10, "diversity": parts["diversity"]}, "reasons, k 10": {"k": 10, "reasons": True},
        "reasons, k 100": {"k": 100, "reasons": True}, "all of these": {"k": 10} | parts,
        "a new source with 5 events": {"k": 10, "src": "a visitor", "context": context[:5]},
        "a new source with 64 events": {"k": 10, "src": "a visitor", "context": context},
        "similar by embedding": {"k": 10, "by": "embedding"}, "similar by partners": {"k": 10, "by": "partners"}}


def _write(path: Path, schema) -> None:
    """Write a log in which popular items have most events, and each item its features."""
    rng = np.random.default_rng(1)
    src = rng.integers(0, USERS, EDGES)
    dst = USERS + (ITEMS * rng.random(EDGES) ** 3).astype(np.int64)
    dst[:ITEMS] = USERS + np.arange(ITEMS)
    time_E = np.sort(rng.integers(0, HOUR, EDGES))
    keys = [*(f"user:{i}" for i in range(USERS)), *(f"item:{i}" for i in range(ITEMS))]
    writer = LogWriter(path, schema)
    writer.keys.update({key: i for i, key in enumerate(keys)})
    writer.commit(batch(schema, src, dst, time_E, keys), Progress(), int(time_E[-1]))
    values = np.zeros((ITEMS, schema.node_feature_dim), np.float32)
    values[np.arange(ITEMS), rng.integers(0, 100, ITEMS)] = 1
    values[:, -2] = rng.uniform(1, 100, ITEMS)
    values[:, -1] = rng.random(ITEMS) < 0.5
    none = np.zeros(ITEMS, np.int64)
    writer.commit(dataclasses.replace(empty_batch(schema), node_F=USERS + np.arange(ITEMS), node_row_F=np.arange(ITEMS), node_edge_F=none,
                                      node_values_F=values), Progress(), 100 * HOUR)
    writer.close()

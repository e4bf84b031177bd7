"""/v1/recommend with a trial next to the same request without one, in turn on one server, and on another server of the same log without a trial.

CPU time of the process, the thread of impressions and its Kafka client included: it depends less on the rest of the machine."""

import tempfile
import time
from pathlib import Path

import numpy as np

from streamd.demo.standin import StandIn
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.settings.loading import load_settings
from streamd.trials.arms import Arms
from tests.benchmarks.measure import Row, pick_size
from tests.builders import HOUR, batch
from tests.server.world import World, wait

ROUNDS, USERS, ITEMS, EDGES = pick_size((300, 500, 2_000, 3_000), (3, 100, 500, 1_000))
PROMISE = 1.1
"""Times the request without a trial."""


def run() -> list[Row]:
    broker = StandIn()
    broker.create_topic("shown", 4)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        _write(path)
        plain = World.of(path, _settings(path, broker))
        plain.train(2)
        # The data is drawn, so a rule may serve.
        version, champion = plain.registry.names()
        plain.registry.promote(champion, "benchmark", "to measure a version")
        arms = dict.fromkeys(("champion", version, "rule", "popularity"), 0.25)
        world = World.of(path, _settings(path, broker, {"trials.name": "cost", "trials.arms": arms, "trials.topic": "shown"}), "serve-2")
        for one in (plain, world):
            one.run()
            wait(lambda one=one: one.engine.status.ready and one.engine.status.version != "rule", 600)
        unit_of = {arm: next(f"u{i}" for i in range(1000) if Arms("cost", arms).arm_of(f"u{i}") == arm) for arm in arms}
        kinds = {"no trial runs": (plain, {}), "without unit": (world, {}),
                 **{"an older version" if arm == version else arm: (world, {"trial": {"unit": unit}}) for arm, unit in unit_of.items()}}
        seconds = np.zeros((ROUNDS, len(kinds)))

        # In turn, so that what else the machine does falls on all; each is first in its turn.
        rng = np.random.default_rng(0)
        for i in range(-20, ROUNDS):
            for n in np.roll(np.arange(len(kinds)), i):
                server, more = list(kinds.values())[n]
                # A user of its own: the first request about one computes embeddings that the others would find.
                body = {"src": f"user:{rng.integers(USERS)}", "k": 10} | more
                begun = time.process_time()
                answer = server.client.post("/v1/recommend", json=body)
                if i >= 0:
                    seconds[i, n] = time.process_time() - begun
                assert answer.status_code == 200 and len(answer.json()["scores"]) == 10, answer.text
        for one in (plain, world):
            one.stop()
    broker.close()
    ms = 1e3 * np.percentile(seconds, 50, axis=0)
    return [Row(f"/v1/recommend in a trial, {name}: CPU, p50", float(ms[n]), "ms", float(ms[0] * PROMISE), f"{PROMISE} x no trial")
            for n, name in enumerate(kinds) if n]


def _settings(path, broker, values=None):
    return load_settings(None, {"data_dir": path, "stream.time_unit": "us", "bootstrap.max_events": 0, "kafka.client": broker.client,
                                "kafka.bootstrap_servers": broker.bootstrap_servers, **(values or {})}, {})[0]


def _write(path: Path) -> None:
    """Write two hours of events in which popular items have most."""
    rng = np.random.default_rng(1)
    src = rng.integers(0, USERS, EDGES)
    dst = USERS + (ITEMS * rng.random(EDGES) ** 3).astype(np.int64)
    time_E = np.sort(rng.integers(0, 2 * HOUR, EDGES))
    keys = [*(f"user:{i}" for i in range(USERS)), *(f"item:{i}" for i in range(ITEMS))]
    writer = LogWriter(path, Schema())
    writer.keys.update({key: i for i, key in enumerate(keys)})
    writer.commit(batch(Schema(), src, dst, time_E, keys), Progress(), 100 * HOUR)
    writer.close()

"""The state of a trial while it runs: impressions over twice its horizon, so that in the second half as many are closed as opened.

10 M impressions over 60 days, with 30 days of horizon:

python -m tests.benchmarks.trials --impressions 10000000
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from streamd.trials.figures import look
from streamd.trials.impressions import Impression
from streamd.trials.trial_state import Definition, OutcomeEdge, TrialState, hash_key, read_sums
from tests.benchmarks.measure import Row, pick_size

SIZE = pick_size(1_000_000, 4_000)
DAYS, HORIZON_DAYS, DAY_US = 60, 30, 86_400_000_000
BATCH, SHOWN = 20_000, 10
ARMS = ("champion", "last_midnight", "rule")


def measure(path: Path, num: int) -> Iterator[dict[str, float]]:
    """The state at each quarter of `num` impressions to num / 100 users: each fifth has an edge as its outcome, a day later."""
    state = TrialState(path, Definition(name="t", shares=dict.fromkeys(ARMS, 1 / 3), horizon_seconds=HORIZON_DAYS * 86_400, edge_set="default"), 1)
    rng, batch, users = np.random.default_rng(0), min(BATCH, num // 8), max(10, num // 100)
    num_quarters, begun, edges = 0, time.perf_counter(), []
    seconds = {"impressions": 0.0, "edges": 0.0, "closing": 0.0}
    for first in range(0, num, batch):
        # The records, as a server sends them.
        user_N = rng.integers(0, users, batch)
        time_N = ((first + np.arange(batch)) * (DAYS * DAY_US // num)).tolist()
        dst_NK = rng.integers(0, 100_000, (batch, SHOWN))
        values = [msgspec.json.encode(Impression(
            answer=f"{first:x}-{i}", trial="t", arm=ARMS[user % 3], unit=f"user:{user}", version="v", src=f"user:{user}",
            dst=[f"item:{n}" for n in shown], edge_set="default", edge=first + i, time_us=at))
            for i, (user, at, shown) in enumerate(zip(user_N.tolist(), time_N, dst_NK.tolist(), strict=True))]

        # Records, the edges of a day ago, and the end of horizons, as the role takes them.
        at = time.perf_counter()
        state.take_records(values, {0: first + batch}, time_N[-1])
        seconds["impressions"] += time.perf_counter() - at
        edges += [OutcomeEdge(first + batch + i, hash_key(f"user:{user_N[i]}"), hash_key(f"item:{dst_NK[i, 3]}"), time_N[i] + DAY_US) for i in range(0, batch, 5)]
        due = [one for one in edges if one.time_us <= time_N[-1]]
        edges = edges[len(due):]
        at = time.perf_counter()
        state.take_edges(due, first + batch)
        seconds["edges"] += time.perf_counter() - at
        at = time.perf_counter()
        while state.close_before(time_N[-1]):
            pass
        seconds["closing"] += time.perf_counter() - at
        if (first + batch) * 4 // num > num_quarters:
            num_quarters += 1
            sums = read_sums(path)
            at = time.perf_counter()
            look(sums)
            read_seconds = time.perf_counter() - at
            closed = sum(sums.impressions.values())
            yield {
                "impressions": first + batch, "open": sum(sums.opened.values()) - closed, "outcomes": sum(sums.outcomes.values()),
                "disk_bytes": sum(one.stat().st_size for one in path.parent.iterdir()), "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "impressions_a_second": 1 / (seconds["impressions"] / (first + batch)), "look_seconds": read_seconds, "seconds": time.perf_counter() - begun,
                **{f"{name}_seconds": value for name, value in seconds.items()}}
    state.close()


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        quarters = [*measure(Path(folder) / "t.sqlite", SIZE)]
    half, whole = quarters[1], quarters[3]
    return [Row("trial's state after twice the horizon", whole["disk_bytes"] / 1e6, "MB", half["disk_bytes"] / 1e6, "after the horizon"),
            Row("memory of a trial's state, twice the horizon", whole["peak_memory_bytes"] / 2**20, "MiB", half["peak_memory_bytes"] / 2**20, "after the horizon"),
            Row("impressions into a trial's state", whole["impressions_a_second"], "/s", half["impressions_a_second"], "in the first half")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--impressions", type=int, default=SIZE)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for quarter in measure(Path(folder) / "t.sqlite", given.impressions):
            print(json.dumps({name: round(value, 4) for name, value in quarter.items()}), flush=True)

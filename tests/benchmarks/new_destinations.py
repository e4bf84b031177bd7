"""How well new destinations rank among each other by their features, on a generated stream: `python -m tests.benchmarks.new_destinations [--seeds 0,1,2] [--without]`.

Items get a row of features when they appear, and most of them are never taken. One event in five takes an item that nobody took before: of one of the
source's two topics, listed rather than not, and soon after it appeared. Others take a known item. Prints a line of JSON per seed: MRR of a new
destination among up to 10 others that were new then (`among new`), by the model, by the shares that the events were drawn by (`true shares`, which
nothing can beat), and of random order (`chance`, what popularity gives); then the MRR against 100 known ones that backtests print. `--without` learns
no score of new destinations.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from streamd.evaluation.regimes import Regimes
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.graph.ranking import ranks
from streamd.settings.loading import load_settings, schema_of
from streamd.training.recorder import Recorder
from streamd.windows import next_window
from tests.benchmarks.accuracy import all_means
from tests.benchmarks.measure import pick_size
from tests.builders import batch, learning

DAY_US = 86_400_000_000
SOURCES, ITEMS, TOPICS, EVENTS, DAYS = pick_size((600, 8_000, 12, 16_000, 16), (40, 400, 4, 600, 6))
SHARE_NEW = 0.2
COMMIT_EVENTS = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shop:
    """src_E, item_E: int64[E], from 0. time_E: int64[E] microseconds. born_A: days, ascending. topic_A, listed_A: of the items. own_ST: topics of the sources."""

    src_E: np.ndarray
    item_E: np.ndarray
    time_E: np.ndarray
    born_A: np.ndarray
    topic_A: np.ndarray
    listed_A: np.ndarray
    own_ST: np.ndarray

    @property
    def rows_AD(self) -> np.ndarray:
        return np.concatenate([np.eye(TOPICS)[self.topic_A], self.listed_A[:, None]], 1).astype(np.float32)

    def shares(self, source: int, items: np.ndarray, day: float) -> np.ndarray:
        """How likely a source takes each item that is new: not scaled."""
        wanted = np.where(np.isin(self.topic_A[items], self.own_ST[source]), 1, 0.02)
        return wanted * np.where(self.listed_A[items], 1, 0.1) * 0.5 ** (day - self.born_A[items])


def shop(seed: int) -> Shop:
    rng = np.random.default_rng(seed)
    when = np.sort(rng.uniform(0, DAYS, EVENTS))
    made = Shop(src_E=rng.integers(0, SOURCES, EVENTS), item_E=np.zeros(EVENTS, np.int64), time_E=(when * DAY_US).astype(np.int64),
                born_A=np.sort(rng.uniform(-2, DAYS, ITEMS)), topic_A=rng.integers(0, TOPICS, ITEMS), listed_A=rng.random(ITEMS) < 0.5,
                own_ST=np.array([rng.choice(TOPICS, 2, replace=False) for _ in range(SOURCES)]))
    is_new, taken = np.ones(ITEMS, np.bool_), []
    for e, (source, day) in enumerate(zip(made.src_E, when, strict=True)):
        if not taken or rng.random() < SHARE_NEW:
            items = np.flatnonzero(is_new[: np.searchsorted(made.born_A, day)])
            share = made.shares(source, items, day)
            item = rng.choice(items, p=share / share.sum())
        else:
            # One of the 300 last takings, of the source's topics if there is one.
            last = np.array(taken[-300:])
            own = last[np.isin(made.topic_A[last], made.own_ST[source])]
            item = rng.choice(own if len(own) else last)
        is_new[item] = False
        taken.append(item)
        made.item_E[e] = item
    return made


def write(path: Path, schema: Schema, stream: Shop) -> None:
    """Write a log in which each item's features come when it appears."""
    keys = [*(f"source:{i}" for i in range(SOURCES)), *(f"item:{i}" for i in range(ITEMS))]
    writer = LogWriter(path, schema, EVENTS)
    writer.keys.update({key: i for i, key in enumerate(keys)})
    place_A = np.searchsorted(stream.time_E, stream.born_A * DAY_US)
    for at in range(0, EVENTS, COMMIT_EVENTS):
        end = min(at + COMMIT_EVENTS, EVENTS)
        items = np.flatnonzero((place_A >= at) & (place_A < end))
        events = batch(schema, stream.src_E[at:end], SOURCES + stream.item_E[at:end], stream.time_E[at:end], () if at else keys)
        rows = dataclasses.replace(events, node_F=SOURCES + items, node_row_F=place_A[items] - at + np.arange(len(items)), node_edge_F=place_A[items] - at,
                                   node_values_F=stream.rows_AD[items])
        writer.commit(rows, Progress(), int(stream.time_E[end - 1]) + (10**15 if end == EVENTS else 0))
    writer.close()


def among_new(learner, stream: Shop) -> dict[str, list[float]]:
    """Reciprocal ranks of a window's new destinations among others that were new: of the model, the true shares and random order."""
    out = {"model": [], "true shares": [], "chance": []}
    for seen, logits_EC in zip([s for s in learner.chunks if s is not None], learner.logits, strict=True):
        inputs = seen.inputs
        node_EC = inputs.node_M[inputs.hops[0].root_U][inputs.candidate_EC].numpy()
        source_E = inputs.node_M[inputs.hops[0].root_U][inputs.src_E].numpy()
        for e in torch.nonzero(inputs.is_new_E & (inputs.weight_E > 0))[:, 0].tolist():
            counts = inputs.is_candidate_EC[e].numpy()
            day = stream.time_E[int(inputs.event_E[e])] / DAY_US
            share = stream.shares(source_E[e], node_EC[e, counts] - SOURCES, day)
            out["model"].append(1 / ranks(logits_EC[e : e + 1, counts])[0])
            out["true shares"].append(1 / ranks(share[None])[0])
            out["chance"].append((1 / np.arange(1, counts.sum() + 1)).mean())
    return out


def measured(seed: int, learns: bool) -> dict:
    stream = shop(seed)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        settings = load_settings(None, {
            "data_dir": path, "stream.time_unit": "us", "stream.node_feature_dim": TOPICS + 1, "windows.width_seconds": 86_400, "windows.max_events": 10**9,
            "training.tail_share": 0, "training.replay_events": 0, "training.replay_capacity_events": 0, "training.seed": seed}, environ={})[0]
        write(path, schema_of(settings), stream)
        log = LogReader.open(path)
        run = Regimes(learning(settings), log, ("live",), int(np.searchsorted(stream.time_E, 0.3 * DAYS * DAY_US)), 4)
        windows, edge, found = [], 0, {}
        while (window := next_window(log, edge, DAY_US)) is not None:
            if (scored := run.window(window)) is not None:
                windows.append(scored)
                for name, values in among_new(run.learners["live"], stream).items():
                    found.setdefault(name, []).extend(values)
            edge = window.end_edge
            print(f"\r{edge} of {EVENTS}, {time.perf_counter() - begun:.0f} s", end="", file=sys.stderr)
    got = all_means(windows)["live"]
    return {"seed": seed, "learns": learns, "seconds": round(time.perf_counter() - begun), "new": len(found["model"]),
            "among new": {name: round(float(np.mean(values)), 4) for name, values in found.items() if values},
            "against known": {name: got[name] for name in ("mrr", "mrr_known", "mrr_destination_new")}}


def _draws_none(self, pool, event, dst, known):
    """As `Recorder._draw_new`, without any event that can be learned."""
    return np.repeat(dst[:, None], 10, 1), np.zeros(len(dst), np.bool_)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--without", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for seed in map(int, asked.seeds.split(",")):
        with patch.object(Recorder, "_draw_new", _draws_none if asked.without else Recorder._draw_new):
            print(json.dumps(measured(seed, not asked.without)), flush=True)


if __name__ == "__main__":
    main()

"""Accuracy under the protocol of the peers' `baselines.py`, on the streams beside it: same windows, batches, negatives.

`python -m tests.benchmarks.accuracy STREAM [--name tgn] [--stale 200] [--seeds 0,1,2] [--set model.dim=100 ...]` prints one
line of JSON per seed; STREAM may be `new-pairs`, a generated one in which no pair repeats. `--first 60000` takes so many events. Facts are `--stale` events old (0: as of each event); initial part 30%, 10 epochs; 2 epochs a window.
`--without met,gap` hides the facts whose names hold one of these words. `--sets` makes each type of mathoverflow's events an edge
set of its own, where else the type is a feature; either way its scores are told by type too.
"""

import argparse
import csv
import gzip
import json
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from streamd.evaluation.backtest import Result, means
from streamd.evaluation.regimes import Regimes, RegimeWindow, best_half_life
from streamd.eventlog.reader import LogReader
from streamd.graph.facts.columns import FACT_NAMES, NUM_HALF_LIVES
from streamd.schema import EdgeSet, Schema
from streamd.settings.loading import load_settings
from streamd.training.recorder import Chunk, Recorder
from streamd.windows import next_window
from streamd.windows.novelty import NOVELTIES
from tests.benchmarks.measure import SHARED, Row, write_edges
from tests.builders import learning

DAY = 86_400
MATHOVERFLOW = ("answers", "comments_on_questions", "comments_on_answers")
NEW_PAIRS = "new-pairs"
WIDTH = {"wikipedia": DAY, "collegemsg": 7 * DAY, "mathoverflow": 60 * DAY, "nyc-green-taxi": DAY, NEW_PAIRS: DAY}
STALE_TARGET = {"wikipedia": (0.865, 0.988), "collegemsg": (0.648, 0.948), "nyc-green-taxi": (0.446, 0.929), "mathoverflow": (0.760, 0.973)}
FRESH_TARGET = {"wikipedia": (0.907, 0.992), "collegemsg": (0.799, 0.972), "nyc-green-taxi": (0.447, 0.930), "mathoverflow": (0.875, 0.988)}
"""MRR and AP of the peer's pair network (200 events old: the line to reach)."""


def read(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """src, dst, time in seconds, features float32[E, D] of a stream, as the protocol has them."""
    if name == NEW_PAIRS:
        return new_pairs()
    with gzip.open(SHARED.parent / "data" / name / "edges.csv.gz", "rt") as file:
        rows = list(csv.reader(file))
    head, body = rows[0], rows[1:]
    src, dst, when = (np.array([int(float(r[head.index(c)])) for r in body], np.int64) for c in ("src", "dst", "t"))
    features = np.zeros((len(body), 0), np.float32)
    if name == "nyc-green-taxi":
        kept = [i for i in range(head.index("duration_s"), len(head)) if head[i] != "tip_amount"]
        features = np.array([[float(r[i]) for i in kept] for r in body], np.float32)
    elif name == "mathoverflow":
        features = np.eye(3, dtype=np.float32)[[int(r[head.index("etype")]) for r in body]]
    return src, dst, when, features


def new_pairs(events=40_000, sources=3_000, destinations=1_500, tastes=30, days=30) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A stream in which no pair repeats: each source has two of many tastes, each taste its own popular destinations; one event in five
    goes anywhere."""
    rng = np.random.default_rng(0)
    own = rng.integers(0, tastes, (sources, 2))
    taste_of = rng.integers(0, tastes, destinations)
    weight = 1 / np.arange(1, destinations + 1) ** 0.8
    rng.shuffle(weight)
    shares = [weight * (taste_of == t) for t in range(tastes)]
    had, src, dst = [set() for _ in range(sources)], [], []
    while len(src) < events:
        u = int(rng.integers(sources))
        share = weight if rng.random() < 0.2 else shares[own[u, rng.integers(2)]]
        v = int(rng.choice(destinations, p=share / share.sum()))
        if v not in had[u]:
            had[u].add(v)
            src.append(u)
            dst.append(sources + v)
    when = np.sort(rng.integers(0, days * DAY, events))
    return np.array(src), np.array(dst), when, np.zeros((events, 0), np.float32)


def protocol(name: str, stale: int, regimes=("live",), sets: bool = False, first: int | None = None, **values) -> tuple[list[RegimeWindow], int, int, float]:
    """Windows of one run, first edge behind the initial part, edges in all, seconds."""
    src, dst, when, features = (column[:first] for column in read(name))
    width = WIDTH[name]
    cut_time = int(when[int(0.3 * len(src))])
    cut = int(np.searchsorted(when, cut_time))
    shifted = (when - cut_time + -(-(cut_time - int(when[0])) // width) * width) * 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        # The one-hot type of an event is just what a row of features of sets without features is.
        schema = Schema.declared((), [EdgeSet(t) for t in MATHOVERFLOW]) if sets else None
        write_edges(path, list(range(int(max(src.max(), dst.max())) + 1)), src, dst, shifted, features, int(shifted[-1]) + 10**15, schema)
        half_lives = tuple(f * width for f in (0.001, 0.02, 0.1, 0.5, 8))
        settings = load_settings(None, {
            "data_dir": path, "stream.edge_feature_dim": features.shape[1], "windows.width_seconds": width,
            "windows.max_events": 10**9, "training.tail_share": 0, "training.replay_events": 0, "training.replay_capacity_events": 0,
            "model.half_lives_seconds": half_lives} | {k.replace("__", "."): v for k, v in values.items()}, environ={})[0]
        log = LogReader.open(path)
        begun = time.perf_counter()
        run, out, edge = Regimes(learning(settings), log, regimes, cut, 10, stale), [], 0
        by_type = told_by(run, features.argmax(1), MATHOVERFLOW) if name == "mathoverflow" else nullcontext()
        while (window := next_window(log, edge, width * 1_000_000)) is not None:
            with by_type:
                scored = run.window(window)
            if scored is not None:
                out.append(scored)
            edge = window.end_edge
            print(f"\r{name} edge {edge} of {len(src)}, {time.perf_counter() - begun:.0f} s", end="", file=sys.stderr)
        return out, cut, len(src), time.perf_counter() - begun


def told_by(run: Regimes, type_E: np.ndarray, names: tuple[str, ...]):
    """A context in which `run` tells scores by the type of events as if types were edge sets, also where the log has one set.

    type_E: the type of each event, int64[E], a place in `names`.
    """
    own = Chunk.edge_set_E.fget

    def types(chunk: Chunk) -> np.ndarray:
        count = len(chunk.scored_facts)
        found = type_E[chunk.first_edge : chunk.first_edge + count]
        # Where types are sets, what the log says of each event must be this too.
        assert len(found) == count and (not several or (found == own(chunk)).all())
        return found

    several, run._edge_sets = len(run._edge_sets) > 1, names
    return patch.object(Chunk, "edge_set_E", property(types))


def means_of_groups(windows: list[RegimeWindow]) -> dict[str, dict[str, tuple[int, float, float]]]:
    """Type -> regime or rule -> events, and event-weighted means over windows of MRR and AP. Popularity is left out."""
    out = {}
    for name in dict.fromkeys(name for w in windows for name in w.edge_sets):
        own = [w.edge_sets[name] for w in windows if name in w.edge_sets]
        weight = [s.num_scored for s in own]
        out[name] = {model: (sum(weight), *(round(float(np.average([s.scores[model][m] for s in own], weights=weight)), 4) for m in ("mrr", "ap")))
                     for model in own[0].scores if not model.startswith("popularity")}
    return out


def hide_facts(words: list[str]) -> list[str]:
    """Let facts whose names hold one of the words be 0 from here on, in this process. Returns: their names."""
    hidden = [name for name in FACT_NAMES if any(word in name for word in words)]
    if not hidden:
        raise SystemExit(f"No fact's name holds one of {words}; facts are {', '.join(FACT_NAMES)}.")
    columns, computed = [FACT_NAMES.index(name) for name in hidden], Recorder.chunks

    def chunks(self, *args, **kwargs):
        for chunk in computed(self, *args, **kwargs):
            for inputs in (chunk.score, chunk.learn):
                if inputs is not None:
                    inputs.facts_ECF[..., columns] = 0
            yield chunk

    Recorder.chunks = chunks
    return hidden


def all_means(windows: list[RegimeWindow]) -> dict[str, dict[str, float]]:
    """Event-weighted means over windows of every regime and rule."""
    return {name: {m: round(v, 4) for m, v in means(windows, name).items()} for name in windows[0].scores}


def run() -> list[Row]:
    """The cheapest model of ours, 200 events old and fresh, on the smallest stream; the rest by hand, it takes an hour."""
    if not (SHARED.parent / "data" / "collegemsg").exists():
        return []
    rows = []
    for stale, target in ((200, STALE_TARGET), (0, FRESH_TARGET)):
        got = all_means(protocol("collegemsg", stale, model__name="pair")[0])["live"]
        rows += [Row(f"collegemsg, facts {stale} events old, pair: {m}", got[m], m, target["collegemsg"][i], "the peer's pair network")
                 for i, m in enumerate(("mrr", "ap"))]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("stream", choices=list(WIDTH))
    parser.add_argument("--name", default="tgn")
    parser.add_argument("--stale", type=int, default=200)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--regimes", default="live,frozen")
    parser.add_argument("--without", default="")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--sets", action="store_true")
    parser.add_argument("--first", type=int)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    without = hide_facts(asked.without.split(",")) if asked.without else []
    values = {k: json.loads(v) for k, v in (s.split("=", 1) for s in asked.set)}
    for seed in map(int, asked.seeds.split(",")):
        windows, cut, total, seconds = protocol(
            asked.stream, asked.stale, asked.regimes.split(","), asked.sets, asked.first, **{"model.name": asked.name, "training.seed": seed} | values)
        got = all_means(windows)
        half = best_half_life(windows, int(0.2 * total), cut)
        target = (STALE_TARGET if asked.stale else FRESH_TARGET).get(asked.stream)
        per_window = {r: round(float(np.mean([w.seconds[r] for w in windows])), 3) for r in windows[0].seconds}
        print(json.dumps({"stream": asked.stream, "model": asked.name, **values, "stale": asked.stale, "seed": seed, "first": asked.first, "without": without, "sets": asked.sets,
                          "target": target, "seconds": round(seconds), "per_window": per_window,
                          **{k: (v["mrr"], v["ap"], v["mrr_known"]) for k, v in got.items() if not k.startswith("popularity")},
                          "events": Result(windows, 2, {}).novelty_counts(), "mrr_by_novelty": {r: {n: got[r].get(f"mrr_{n}") for n in NOVELTIES} for r in windows[0].seconds},
                          "types": means_of_groups(windows),
                          "popularity": [got[f"popularity_{h}"]["mrr"] for h in range(NUM_HALF_LIVES)], "half_life": half}), flush=True)


if __name__ == "__main__":
    main()

"""tgbl-wiki of the Temporal Graph Benchmark (Huang et al. 2023), by its protocol: `python -m tests.benchmarks tgb`.

The stream is `wikipedia` of the shared data, which is tgbl-wiki's. The first 70% of its time is learned (110,232 events), then
weights stay as they are while graph, facts and memory go on (TGB's rule). Each event of the validation (23,621) and the test
part (23,621) is ranked against all other pages, less other true pages of its source at its second; ties count half. Everything
is chosen on the validation part; the test part is asked for with `--test`.

TGB's board mixes two conventions. Entries made with DyGLib see every earlier event: staleness 0 here. TGB's own loops add events in
batches of 200: staleness 200. `--live` also finetunes on each day after it was scored, which TGB does not allow.

`python -m tests.benchmarks.tgb [--name tgn] [--stale 0] [--seeds 0,1] [--epochs 10] [--test] [--live] [--set model.dim=100]`
prints one line of JSON a seed; `--save FOLDER` keeps the scores, on which `tests/benchmarks/peers/tgb_evaluator.py` runs TGB's own
Evaluator in an environment of its own.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from streamd.evaluation.freshness import StaleView
from streamd.evaluation.regimes import SKIPPED
from streamd.eventlog.reader import LogReader
from streamd.events import Float32, Int64
from streamd.graph.neighborhood import sample_neighborhood
from streamd.models.inputs import link_inputs
from streamd.settings.loading import Settings, load_settings
from streamd.training.event_view import FreshView
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.windows import Window, next_window
from tests.benchmarks.accuracy import read
from tests.benchmarks.measure import SHARED, Row, write_edges
from tests.builders import learning

DAY = 86_400
PARTS = ("train", "validation", "test")
EDGEBANK = {"validation": 0.527, "test": 0.495}
"""EdgeBank with unlimited memory on TGB's board, for which events are added in batches of 200."""
BATCH = 200


@dataclasses.dataclass(frozen=True)
class Stream:
    """tgbl-wiki. src, dst, when (seconds): int64[E]; pages: int64[P], ascending; ends: of the three parts."""

    src: Int64
    dst: Int64
    when: Int64
    pages: Int64
    ends: tuple[int, int, int]

    @classmethod
    def load(cls) -> "Stream":
        src, dst, when, _ = read("wikipedia")
        cuts = np.searchsorted(when, np.quantile(when, (0.70, 0.85)), side="right").tolist()
        return cls(src, dst, when, np.unique(dst), (*cuts, len(src)))

    def others(self, part: str) -> list[Int64]:
        """Columns of the pages that count as no negative of each event of a part: true ones of that source and second."""
        first, end = self.range(part)
        true = defaultdict(set)
        for e in range(first, end):
            true[self.src[e], self.when[e]].add(int(self.dst[e]))
        return [np.searchsorted(self.pages, sorted(true[self.src[e], self.when[e]] - {int(self.dst[e])})) for e in range(first, end)]

    def range(self, part: str) -> tuple[int, int]:
        number = PARTS.index(part)
        return (0, *self.ends)[number], self.ends[number]


def reciprocal_ranks(stream: Stream, part: str, scores_EP: Float32) -> Float32:
    """1 / rank of each event of a part: float32[E]. scores_EP: of all pages; ties average the best and the worst rank."""
    first, end = stream.range(part)
    scores = scores_EP.copy()
    for row, others in enumerate(stream.others(part)):
        scores[row, others] = -np.inf
    true_E1 = scores[np.arange(end - first), np.searchsorted(stream.pages, stream.dst[first:end])][:, None]
    above, equal = (scores > true_E1).sum(1), (scores == true_E1).sum(1) - 1
    return (1 / (1 + above + equal / 2)).astype(np.float32)


def edgebank(stream: Stream, part: str) -> float:
    """MRR of EdgeBank (Poursafaei et al. 2022): 1 for a pair that met before the event's batch, else 0."""
    first, end = stream.range(part)
    met = np.zeros((int(stream.src.max()) + 1, len(stream.pages)), np.bool_)
    column = np.searchsorted(stream.pages, stream.dst)
    met[stream.src[:first], column[:first]] = True
    scores = np.zeros((end - first, len(stream.pages)), np.float32)
    for a in range(first, end, BATCH):
        b = min(a + BATCH, end)
        scores[a - first : b - first] = met[stream.src[a:b]]
        met[stream.src[a:b], column[a:b]] = True
    return float(reciprocal_ranks(stream, part, scores).mean())


class AllPages:
    """Asks another view for the facts of all pages as well, and keeps them until they are used."""

    def __init__(self, view: FreshView | StaleView, pages: Int64) -> None:
        self._view = view
        self._pages = pages
        self.asked: Int64 = np.zeros(0, np.int64)
        self.facts_EPF: Float32 = np.zeros((0, 0, 0), np.float32)
        self.pool_of, self.enter, self.edge_before, self.leave = view.pool_of, view.enter, view.edge_before, view.leave
        self.knows_destination = view.knows_destination

    def facts(self, part, until: int, asked: Int64, candidates: Int64) -> Float32:
        whole = np.concatenate([candidates, np.tile(self._pages, (len(asked), 1))], 1)
        facts = self._view.facts(part, until, asked, whole)
        self.asked, self.facts_EPF = asked, facts[:, candidates.shape[1]:]
        return np.ascontiguousarray(facts[:, : candidates.shape[1]])


class Run:
    """One model on the stream: learns the train part, then scores the others day by day."""

    def __init__(self, stream: Stream, settings: Settings, log: LogReader, stale: int) -> None:
        self.stream, self.log, self.settings = stream, log, settings
        self.recorder = Recorder(learning(settings), log)
        if stale:
            self.recorder.view = StaleView(FreshView(self.recorder.live), self.recorder.live, stale)
        self.learner = Learner(learning(settings), log, ReplayStore.of(learning(settings)))
        if stale:
            self.learner.model.new_destinations.stop()

    def windows(self, part: str) -> Iterator[Window]:
        """The days of a part, cut where the part begins and ends."""
        at, end = self.stream.range(part)
        while at < end:
            window = next_window(self.log, at, self.settings.windows.width_seconds * 1_000_000)
            window = dataclasses.replace(window, end_edge=min(window.end_edge, end))
            at = window.end_edge
            yield window

    def learn(self, epochs: int) -> None:
        """Learn the train part at once."""
        first = int(SKIPPED * self.stream.ends[0])
        for window in self.windows("train"):
            for chunk in self.recorder.chunks(window, first_recorded=first):
                self.learner.score(chunk)
        self.learner.learn(self.stream.ends[0], epochs=epochs)

    def scores(self, part: str, live: bool, on_window: Callable[[int], None]) -> Float32:
        """Scores of all pages for each event of a part, float32[E, P]; `live` learns each day afterwards."""
        first, end = self.stream.range(part)
        out = np.full((end - first, len(self.stream.pages)), np.nan, np.float32)
        fresh = self.recorder.view
        view = AllPages(fresh, self.stream.pages)
        self.recorder.view = view
        for window in self.windows(part):
            self.learner.begin()
            for chunk in self.recorder.chunks(window):
                rows = chunk.edges.first_edge - first + view.asked
                out[rows] = self._all_pages(chunk.edges, view)
                self.learner.score(chunk)
            if live:
                self.learner.learn(window.first_edge)
            else:
                self.learner.update_statistics()
            on_window(window.end_edge)
        self.recorder.view = fresh
        assert np.isfinite(out).all(), "every event is scored"
        return out

    @torch.no_grad()
    def _all_pages(self, part, view: AllPages) -> Float32:
        """Scores of all pages for the events of a canonical chunk, under memory as of its start."""
        model, live, pages = self.learner.model, self.recorder.live, self.stream.pages
        src = part.src_E[view.asked]
        nodes, at = np.unique(np.concatenate([src, pages]), return_inverse=True)
        before_us = int(self.log.time_of(np.array([max(part.first_edge - 1, 0)]))[0])
        around = sample_neighborhood(live.graph, self.log.columns, live.features, nodes, part.first_edge, before_us, model.plan)
        inputs = link_inputs(part.first_edge + view.asked, view.facts_EPF, at[: len(src)], np.tile(at[len(src):], (len(src), 1)), around)
        memory = self.learner.memory.copy()
        with model.over(memory, part) as updated_PD:
            return self.learner.transfer.logits(model, memory, inputs, updated_PD)


def measured(stale: int, seed: int, parts: tuple[str, ...], epochs: int, live: bool, save: Path | None = None, **values) -> dict[str, float]:
    """MRR of a model on parts of the stream, and the seconds that learning and scoring took."""
    stream = Stream.load()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        write_edges(path, list(range(int(stream.dst.max()) + 1)), stream.src, stream.dst, stream.when * 1_000_000,
                    np.zeros((len(stream.src), 0), np.float32), int(stream.when[-1]) * 1_000_000 + 10**15)
        settings = load_settings(None, {
            "data_dir": path, "windows.width_seconds": DAY, "windows.max_events": 10**9, "training.tail_share": 0,
            "training.replay_events": 0, "training.replay_capacity_events": 0, "training.seed": seed} | values, environ={})[0]
        begun = time.perf_counter()
        run = Run(stream, settings, LogReader.open(path), stale)
        run.learn(epochs)
        out = {"learned_s": round(time.perf_counter() - begun)}
        for part in PARTS[1 : 1 + PARTS[1:].index(parts[-1]) + 1]:
            scores = run.scores(part, live, lambda edge: print(f"\rup to edge {edge} of {len(stream.src)}", end="", file=sys.stderr))
            if part in parts:
                out[part] = round(float(reciprocal_ranks(stream, part, scores).mean()), 4)
                if save is not None:
                    np.savez(save / f"{part}.npz", scores=scores, src=stream.src, dst=stream.dst, when=stream.when, pages=stream.pages,
                             range=stream.range(part))
        return out | {"seconds": round(time.perf_counter() - begun)}


def run() -> list[Row]:
    """The default model at both stalenesses on the validation part, seed 0, beside EdgeBank, whose figure is checked."""
    if not (SHARED.parent / "data" / "wikipedia").exists():
        return []
    stream = Stream.load()
    banks = {part: edgebank(stream, part) for part in EDGEBANK}
    rows = [Row(f"tgbl-wiki, {part}: EdgeBank, MRR in thousandths", 1e3 * banks[part], "", 1e3 * EDGEBANK[part], "TGB's board") for part in EDGEBANK]
    for stale in (0, 200):
        got = measured(stale, 0, ("validation",), 10, False)["validation"]
        rows.append(Row(f"tgbl-wiki, validation: default model, {stale} events old, MRR in thousandths", 1e3 * got, "", 1e3 * banks["validation"], "EdgeBank"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="tgn")
    parser.add_argument("--stale", type=int, default=0)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    values = {k: json.loads(v) for k, v in (s.split("=", 1) for s in asked.set)}
    for seed in map(int, asked.seeds.split(",")):
        parts = ("validation", "test") if asked.test else ("validation",)
        got = measured(asked.stale, seed, parts, asked.epochs, asked.live, asked.save, **{"model.name": asked.name} | values)
        print(json.dumps({"model": asked.name, **values, "stale": asked.stale, "seed": seed, "live": asked.live, **got}), flush=True)


if __name__ == "__main__":
    main()

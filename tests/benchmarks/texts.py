"""What titles as features bring, on a generated stream of news: `python -m tests.benchmarks.texts [--width 64] [--seeds 0,1,2] [--set model.name=sage ...]`.

Each reader has two of 24 topics. Articles come all the time and are forgotten within days; no reader opens one twice. A title has three words of
its topic and two of any. Prints a line of JSON per seed: MRR of live learning (windows of a day, the first 30 % at once) and of partners +
popularity, of all events and by how many events the destination had before. `--width 0` leaves titles out; `--topics` gives the topic itself as
a feature in their place: the most that a title could say. Beside them, over 100 negatives of another draw: the product of a title's row with the sum
of those that the reader opened, ties by the true popularity, and the shares that the events were drawn by, which nothing can beat.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from streamd.decode.ngrams import ngram_features
from streamd.evaluation.regimes import Regimes
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, empty_batch
from streamd.models.rule import NAME as RULE
from streamd.settings.loading import load_settings, schema_of
from streamd.windows import next_window
from tests.benchmarks.accuracy import all_means, means_of_groups, told_by
from tests.benchmarks.measure import pick_size
from tests.builders import batch, learning

DAY_US = 86_400_000_000
READERS, ARTICLES, TOPICS, EVENTS, DAYS = pick_size((2_000, 1_500, 24, 24_000, 30), (50, 60, 4, 600, 6))
AGES = {"new": 0, "1 to 5 before": 5, "6 to 20 before": 20, "more before": EVENTS}
"""The most events that a destination had before an event, by the name of the group."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class News:
    """reader_E, article_E: int64[E], from 0. time_E: int64[E] microseconds. titles, topic_A, born_A (days), weight_A: of the articles. own_RT: the
    topics of the readers."""

    reader_E: np.ndarray
    article_E: np.ndarray
    time_E: np.ndarray
    titles: list[str]
    topic_A: np.ndarray
    born_A: np.ndarray
    weight_A: np.ndarray
    own_RT: np.ndarray

    def shares(self, day: float) -> np.ndarray:
        """How likely each article is to be opened by a reader of any topic: float64[A], not scaled."""
        return self.weight_A * np.where(self.born_A <= day, 0.5 ** ((day - self.born_A) / 2), 0)


def news(seed: int) -> News:
    rng = np.random.default_rng(seed)
    words = [_word(rng) for _ in range(TOPICS * 12 + 200)]
    topic_A = rng.integers(0, TOPICS, ARTICLES)
    titles = [" ".join([words[topic * 12 + at] for at in rng.choice(12, 3, replace=False)] + [words[TOPICS * 12 + at] for at in rng.choice(200, 2)]) for topic in topic_A]
    own_RT = rng.integers(0, TOPICS, (READERS, 2))
    # A tenth of the articles is there at the beginning.
    born_A = np.sort(rng.uniform(-0.1, 1, ARTICLES)).clip(0) * DAYS
    weight_A = rng.pareto(1.5, ARTICLES) + 0.3
    had = [set() for _ in range(READERS)]
    when = np.sort(rng.uniform(0, DAYS, EVENTS))
    reader, article = [], []
    made = News(reader_E=np.array([]), article_E=np.array([]), time_E=(when * DAY_US).astype(np.int64), titles=titles, topic_A=topic_A, born_A=born_A,
                weight_A=weight_A, own_RT=own_RT)
    for now in when:
        share = made.shares(now)
        while True:
            u = int(rng.integers(READERS))
            liked = share * (topic_A == own_RT[u, rng.integers(2)]) if rng.random() < 0.85 else share
            if liked.sum() > 0 and (v := int(rng.choice(ARTICLES, p=liked / liked.sum()))) not in had[u]:
                break
        had[u].add(v)
        reader.append(u)
        article.append(v)
    return dataclasses.replace(made, reader_E=np.array(reader), article_E=np.array(article))


def _word(rng: np.random.Generator) -> str:
    return "".join(c + v for c, v in zip(rng.choice(list("bdfgklmnprstvz"), 3), rng.choice(list("aeiou"), 3), strict=True))


def write(path: Path, schema, stream: News, values_AD: np.ndarray) -> None:
    """Write a log in which all articles have their features before the first event."""
    keys = [*(f"reader:{i}" for i in range(READERS)), *(f"article:{i}" for i in range(ARTICLES))]
    writer = LogWriter(path, schema, EVENTS)
    writer.keys.update({key: i for i, key in enumerate(keys)})
    nodes = READERS + np.arange(ARTICLES if values_AD.shape[1] else 0)
    writer.commit(dataclasses.replace(empty_batch(schema), new_keys=tuple(keys), node_F=nodes, node_row_F=np.arange(len(nodes)),
                                      node_edge_F=np.zeros(len(nodes), np.int64), node_values_F=values_AD[: len(nodes)].astype(np.float32)), Progress(), -1)
    writer.commit(batch(schema, stream.reader_E, READERS + stream.article_E, stream.time_E), Progress(), int(stream.time_E[-1]) + 10**15)
    writer.close()


def groups_of(stream: News) -> np.ndarray:
    """The place in AGES of each event: int64[E]."""
    seen, before = np.zeros(ARTICLES, np.int64), []
    for v in stream.article_E:
        before.append(seen[v])
        seen[v] += 1
    return np.searchsorted(list(AGES.values()), before)


def bounds(stream: News, values_AD: np.ndarray) -> dict:
    """MRR by age of the nearness of titles, and of the true shares; events whose article is new are ranked as others are."""
    rng, known, had = np.random.default_rng(9), [], [set() for _ in range(READERS)]
    sums_RD = np.zeros((READERS, values_AD.shape[1]))
    ranks = {"titles alone": [], "true shares": []}
    for reader, article, when in zip(stream.reader_E, stream.article_E, stream.time_E, strict=True):
        if when >= 0.3 * DAYS * DAY_US:
            others = rng.choice(np.setdiff1d(known, [article]), 100)
            candidates = np.append(article, others)
            share = stream.shares(when / DAY_US)
            own = [share * (stream.topic_A == topic) for topic in stream.own_RT[reader]]
            true = 0.15 * share / share.sum() + 0.425 * sum(one / max(one.sum(), 1e-9) for one in own)
            true[list(had[reader])] = 0
            near = values_AD @ sums_RD[reader] + 1e-9 * share
            for name, scores in (("titles alone", near), ("true shares", true)):
                s = scores[candidates]
                ranks[name].append(1 + (s[1:] > s[0]).sum() + (s[1:] == s[0]).sum() / 2)
        if article not in known:
            known.append(article)
        had[reader].add(article)
        sums_RD[reader] += values_AD[article]
    group_E = groups_of(stream)[-len(ranks["true shares"]) :]
    return {name: {"all": round(float((1 / np.array(r)).mean()), 4), **{age: round(float((1 / np.array(r))[group_E == at].mean()), 4) for at, age in enumerate(AGES)}}
            for name, r in ranks.items()}


def measured(seed: int, width: int, topics: bool, values: dict) -> dict:
    stream = news(seed)
    features = np.eye(TOPICS)[stream.topic_A] if topics else ngram_features(stream.titles, width) if width else np.zeros((ARTICLES, 0))
    beside = bounds(stream, features) if features.shape[1] else {}
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        settings = load_settings(None, {
            "data_dir": path, "stream.time_unit": "us", "stream.node_feature_dim": features.shape[1], "windows.width_seconds": 86_400, "windows.max_events": 10**9,
            "training.tail_share": 0, "training.replay_events": 0, "training.replay_capacity_events": 0, "training.seed": seed} | values, environ={})[0]
        write(path, schema_of(settings), stream, features)
        log = LogReader.open(path)
        run = Regimes(learning(settings), log, ("live",), int(np.searchsorted(stream.time_E, 0.3 * DAYS * DAY_US)), 10)
        windows, edge = [], 0
        with told_by(run, groups_of(stream), tuple(AGES)):
            while (window := next_window(log, edge, DAY_US)) is not None:
                if (scored := run.window(window)) is not None:
                    windows.append(scored)
                edge = window.end_edge
                print(f"\r{edge} of {EVENTS}, {time.perf_counter() - begun:.0f} s", end="", file=sys.stderr)
    got, by_age = all_means(windows), means_of_groups(windows)
    return {"seed": seed, "features": "topics" if topics else f"text: {width}", **values, "seconds": round(time.perf_counter() - begun),
            **{name: {"all": got[name]["mrr"], "known": got[name]["mrr_known"], **{age: (by_age[age][name][0], by_age[age][name][1]) for age in AGES if age in by_age}}
               for name in ("live", RULE)}, **beside}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--topics", action="store_true")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for seed in map(int, asked.seeds.split(",")):
        values = {k: json.loads(v) for k, v in (s.split("=", 1) for s in asked.set)}
        print(json.dumps(measured(seed, asked.width, asked.topics, values)), flush=True)


if __name__ == "__main__":
    main()

"""Node labels as in TGB's node tasks: which pages will a user edit the next day, to which zones do trips from a zone go the next hour.

A label at the beginning of a day (of an hour) is what share of its events of that day a source has with each destination; sources
without events then have none. It is scored from what came before it, then learned with its window, which ends when it is known. NDCG@10
over the labels after the first 30 %: of the head (live, as served), of the rules that `streamd backtest` prints beside it (mean of a
node's last 7 labels, mean of all labels), and of a node's last label.

`python -m tests.benchmarks.labels [wikipedia|nyc-green-taxi] [--name tgn] [--seeds 0] [--set training.epochs=4]` prints one line of JSON
a seed.
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

from streamd.evaluation.label_scores import AVERAGE, MEAN
from streamd.evaluation.regimes import Regimes
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.settings.loading import load_settings
from streamd.training.measures import ndcg
from streamd.windows import next_window
from tests.benchmarks.accuracy import read
from tests.benchmarks.measure import SHARED, Row
from tests.builders import batch, learning

WIDTH = {"wikipedia": 86_400, "nyc-green-taxi": 3_600}
"""Seconds that a label is of, and the width of windows."""
SKIPPED = 0.3
"""Share of the labels that is not counted."""


@dataclasses.dataclass(frozen=True)
class Labels:
    """node, at (seconds): int64[L], by time, then node; share: float32[L, T]."""

    node: np.ndarray
    at: np.ndarray
    share: np.ndarray


def labels_of(src: np.ndarray, dst: np.ndarray, when: np.ndarray, width: int) -> Labels:
    """Shares of each source's events by destination, for each span of `width` seconds in which it has any."""
    classes, column = np.unique(dst, return_inverse=True)
    spans = np.stack([when // width, src], 1)
    groups, group = np.unique(spans, axis=0, return_inverse=True)
    share = np.zeros((len(groups), len(classes)), np.float32)
    np.add.at(share, (group, column), 1)
    return Labels(groups[:, 1], groups[:, 0] * width, share / share.sum(1, keepdims=True))


def write(path: Path, src, dst, when, features, labels: Labels) -> Schema:
    """A log of edges, with each label before the events of its span."""
    schema = Schema(features.shape[1], 0, labels.share.shape[1])
    keys = list(range(int(max(src.max(), dst.max())) + 1))
    writer = LogWriter(path, schema, len(src))
    writer.keys.update({k: i for i, k in enumerate(keys)})
    starts = np.unique(labels.at)
    for at, end in zip(starts, [*starts[1:], int(when[-1]) + 1], strict=True):
        e, own = slice(*np.searchsorted(when, (at, end))), labels.at == at
        rows = batch(schema, src[e], dst[e], when[e] * 1_000_000, keys if at == starts[0] else ())
        rows = dataclasses.replace(
            rows, msg_ED=np.ascontiguousarray(features[e]), label_node_L=labels.node[own], label_time_L=labels.at[own] * 1_000_000,
            label_target_L=labels.share[own])
        writer.commit(rows, Progress(), int(end) * 1_000_000 + (10**15 if end > when[-1] else 0))
    writer.close()
    return schema


def last_label(labels: Labels) -> np.ndarray:
    """Each label as its node's label before it has it; zeros for a node's first: float32[L, T]."""
    out, last = np.zeros_like(labels.share), {}
    for i, node in enumerate(labels.node.tolist()):
        if node in last:
            out[i] = labels.share[last[node]]
        last[node] = i
    return out


def play(stream: str, **values) -> dict[str, float]:
    """NDCG@10 by name, over the labels of the windows after the first 30 % of labels."""
    src, dst, when, features = read(stream)
    when, width = when - when[0] // WIDTH[stream] * WIDTH[stream], WIDTH[stream]
    labels = labels_of(src, dst, when, width)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        schema = write(path, src, dst, when, features, labels)
        settings = load_settings(None, {
            "data_dir": path, "stream.edge_feature_dim": schema.edge_feature_dim, "stream.label_dim": schema.label_dim,
            "model.labels": "classification", "windows.width_seconds": width} | values, environ={})[0]
        log, edge, parts, begun = LogReader.open(path), 0, [], time.perf_counter()
        run = Regimes(learning(settings), log, ("live",), 0)
        while (window := next_window(log, edge, width * 1_000_000)) is not None:
            parts.append(run.window(window))
            edge = window.end_edge
            print(f"\r{edge} of {len(src)}, {time.perf_counter() - begun:.0f} s", end="", file=sys.stderr)

    # From the window on that holds the first label that counts.
    first = labels.at[int(SKIPPED * len(labels.at))] * 1_000_000
    late = [p for p in parts if p.window.start_us >= first and p.num_labels]
    weights = [p.num_labels for p in late]
    found = {name: float(np.average([p.labels[name]["ndcg10"] for p in late], weights=weights)) for name in ("live", AVERAGE, MEAN)}
    counted = labels.at * 1_000_000 >= first
    found["last label"] = ndcg(last_label(labels)[counted], labels.share[counted], 10)
    return found | {"labels": int(counted.sum()), "scored": sum(weights), "classes": labels.share.shape[1]}


def run() -> list[Row]:
    if not (SHARED.parent / "data" / "nyc-green-taxi").exists():
        return []
    got = play("nyc-green-taxi")
    return [Row("taxi, zones of the next hour: label head", got["live"], "NDCG@10", got[AVERAGE], "mean of the last 7")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("stream", choices=list(WIDTH))
    parser.add_argument("--name", default="tgn")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    values = {k: json.loads(v) for k, v in (s.split("=", 1) for s in asked.set)}
    for seed in map(int, asked.seeds.split(",")):
        got = play(asked.stream, **{"model.name": asked.name, "training.seed": seed} | values)
        print(json.dumps({"stream": asked.stream, "model": asked.name, "seed": seed, **values} | {
            k: round(v, 4) for k, v in got.items()}), flush=True)


if __name__ == "__main__":
    main()

"""What online learning buys when the world changes: a joined stream, learned by each regime.

The stream is wikipedia's first 30,000 events, collegemsg's first 30,000, then wikipedia's next 15,000. Times of collegemsg are
scaled, so that its events come as fast as wikipedia's. The first `--first` events (a count, or a share below 1) are learned at once,
for 10 epochs; all others are scored in windows of `--hours` before they are learned. All else is as the settings are without a file.

`python -m tests.benchmarks.joined [--first 300] [--hours 1] [--regimes live,frozen] [--name tgn] [--seeds 0,1] [--set training.epochs=4]`
prints one line of JSON a seed: MRR of each regime over each part, over the first 1,000 events of collegemsg and after the return.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from streamd.evaluation.regimes import Regimes, RegimeWindow
from streamd.eventlog.reader import LogReader
from streamd.settings.loading import load_settings
from streamd.windows import next_window
from tests.benchmarks.accuracy import read
from tests.benchmarks.measure import write_edges
from tests.builders import learning

PARTS = {"wikipedia": 30_000, "collegemsg": 30_000, "return": 15_000}
NEWS = 1_000
"""Events after a change that are counted on their own."""


def joined() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """src, dst, time in seconds: int64[75,000]."""
    src, dst, when, _ = read("wikipedia")
    other_src, other_dst, other_when, _ = read("collegemsg")
    first, other, again = PARTS.values()
    offset = int(max(src.max(), dst.max())) + 1

    # The other stream begins a second after the first ends and takes as long; wikipedia then goes on where it stopped.
    span = int(when[first - 1] - when[0]) + 1
    other_times = (other_when[:other] - other_when[0]) * (span - 1) // int(other_when[other - 1] - other_when[0])
    times = [when[:first] - when[0], span + other_times, span + when[first : first + again] - when[0]]
    return (np.concatenate([src[:first], offset + other_src[:other], src[first : first + again]]),
            np.concatenate([dst[:first], offset + other_dst[:other], dst[first : first + again]]), np.concatenate(times))


def play(first: int, hours: float, regimes: list[str], **values) -> list[RegimeWindow]:
    """The windows that were scored. first: events learned at once."""
    src, dst, when = joined()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        write_edges(path, list(range(int(max(src.max(), dst.max())) + 1)), src, dst, when * 1_000_000,
                    np.zeros((len(src), 0), np.float32), int(when[-1]) * 1_000_000 + 10**15)
        width = int(hours * 3600)
        settings = load_settings(None, {"data_dir": path, "windows.width_seconds": width, "windows.max_events": 10**9} | values, environ={})[0]
        log = LogReader.open(path)
        run, out, edge, begun = Regimes(learning(settings), log, regimes, first, 10), [], 0, time.perf_counter()
        while (window := next_window(log, edge, width * 1_000_000)) is not None:
            scored = run.window(window)
            if scored is not None:
                out.append(scored)
            edge = window.end_edge
            print(f"\r{edge} of {len(src)}, {time.perf_counter() - begun:.0f} s", end="", file=sys.stderr)
        return out


def by_part(windows: list[RegimeWindow]) -> dict[str, dict[str, float]]:
    """MRR of each regime and rule over each part, and over the first events after each change; windows count by their middle."""
    ends = np.cumsum(list(PARTS.values()))
    ranges = {name: (end - count, end) for (name, count), end in zip(PARTS.items(), ends.tolist(), strict=True)}
    ranges |= {f"first {NEWS:,} of {name}": (ranges[name][0], ranges[name][0] + NEWS) for name in ("collegemsg", "return")}
    ranges["all"] = (0, int(ends[-1]))
    out: dict[str, dict[str, float]] = {}
    for part, (a, b) in ranges.items():
        inside = [w for w in windows if a <= (w.window.first_edge + w.window.end_edge) / 2 < b and w.num_scored]
        weights = [w.num_scored for w in inside]
        for name in inside[0].scores if inside else ():
            if not name.startswith("popularity"):
                mrr = float(np.average([w.scores[name]["mrr"] for w in inside], weights=weights))
                out.setdefault(name, {})[part] = round(mrr, 4)
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=float, default=300)
    parser.add_argument("--hours", type=float, default=1)
    parser.add_argument("--regimes", default="live,frozen")
    parser.add_argument("--name", default="tgn")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    first = int(asked.first if asked.first >= 1 else asked.first * sum(PARTS.values()))
    values = {k: json.loads(v) for k, v in (s.split("=", 1) for s in asked.set)}
    for seed in map(int, asked.seeds.split(",")):
        begun = time.perf_counter()
        windows = play(first, asked.hours, asked.regimes.split(","), **{"model.name": asked.name, "training.seed": seed} | values)
        print(json.dumps({"model": asked.name, "seed": seed, "first": windows[0].window.first_edge, "hours": asked.hours, **values,
                          "seconds": round(time.perf_counter() - begun), "mrr": by_part(windows)}), flush=True)


if __name__ == "__main__":
    main()

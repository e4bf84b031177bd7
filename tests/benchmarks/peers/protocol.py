"""Runs the peers' `baselines.py` with negatives from the destinations known before each event.

The peers draw an event's negatives from the destinations known before its window, sorted by id. streamd draws them from those known
strictly before the event, in order of first sight (`streamd.graph.negatives`), so that "never seen" does not mean "true". Only
this is replaced, so that rows of both stand side by side:

`python tests/benchmarks/peers/protocol.py heur collegemsg`, `... tgn collegemsg --regimes frozen,finetune --out FOLDER`: arguments of
`baselines.py`, which lies in the folder that BENCH_PEERS names. Needs `make bench`'s environment and pandas.
"""

import importlib.util
import os
from pathlib import Path

import numpy as np


def load(folder: Path):
    spec = importlib.util.spec_from_file_location("baselines", folder / "baselines.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def negatives_by(peers):
    """The function that takes the place of `baselines.negatives`. peers: the module."""

    def negatives(st, lo: int, hi: int, seed: int = 0) -> np.ndarray:
        nodes, first = np.unique(st.v, return_index=True)
        order = np.argsort(first)
        pool, first_seen = nodes[order], st.t[first[order]]
        position = np.full(st.N, -1)
        position[pool] = np.arange(len(pool))

        # Of events at one time none knows the others.
        known = np.searchsorted(first_seen, st.t[lo:hi])[:, None]
        at = position[st.v[lo:hi]][:, None]
        is_known = at < known
        ctr = np.arange(lo, hi, dtype=np.uint64)[:, None] * np.uint64(peers.NNEG) + np.arange(1, peers.NNEG + 1, dtype=np.uint64)
        h = peers.mix(peers.mix(np.array([seed], np.uint64) + peers.G) + ctr * peers.G)
        i = (h % (known - is_known).astype(np.uint64)).astype(np.int64)
        return pool[i + (is_known & (i >= at))]

    return negatives


if __name__ == "__main__":
    with np.errstate(over="ignore"):
        baselines = load(Path(os.environ["BENCH_PEERS"]))
        baselines.negatives = negatives_by(baselines)
        baselines.main()

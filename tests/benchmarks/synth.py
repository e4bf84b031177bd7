"""Seeded synthetic streams with power-law popularity: each is a function of its preset and seed.

Ends are drawn independently by p(rank r) ~ (r + offset)^-exponent over a seeded permutation of the ids, so that an id says nothing
of its popularity. With probability `repeat_p` an event takes the destination of its source's event before it, as on Reddit.
Times are exponential gaps over `span` seconds, floored to `quantum` seconds, so that equal times come in runs as in GDELT
(15 minutes) and Netflix (a day).
"""

import numpy as np

from tests.benchmarks.measure import pick_size

DAY = 86_400.0
PRESETS = {
    "reddit": {"n_src": 10_000, "n_dst": 984, "n_edges": pick_size(672_447, 6_000), "bipartite": True, "a_src": 0.75, "q_src": 5.0, "a_dst": 1.0,
               "q_dst": 2.0, "repeat_p": 0.6, "span": 30 * DAY, "quantum": 0.0},
    "gdelt": {"n_src": 16_682, "n_dst": 0, "n_edges": pick_size(5_000_000, 10_000), "bipartite": False, "a_src": 1.1, "q_src": 3.0, "a_dst": 1.1,
              "q_dst": 3.0, "repeat_p": 0.2, "span": 48 * DAY, "quantum": 900.0},
    "netflix": {"n_src": 180_000, "n_dst": 20_000, "n_edges": pick_size(5_000_000, 10_000), "bipartite": True, "a_src": 0.6, "q_src": 20.0, "a_dst": 0.9,
                "q_dst": 10.0, "repeat_p": 0.0, "span": 130 * DAY, "quantum": DAY},
}
"""Numbers of ids and events; exponents `a` and offsets `q` of the ends' laws."""


def make(preset: str, scale: float = 1.0, seed: int = 0, **over) -> dict:
    """The stream in order of time: src, dst int64[E]; t float64[E], seconds; num_nodes.

    scale: multiplies events and span, so that the rate stays. over: values in place of the preset's.
    """
    p = PRESETS[preset] | over
    rng = np.random.default_rng([seed, sum(map(ord, preset))])
    count = round(p["n_edges"] * scale)

    # The ends; destinations of a bipartite stream have the ids after its sources.
    src = _drawn(rng, p["n_src"], count, p["a_src"], p["q_src"])
    dst = _drawn(rng, p["n_dst"] if p["bipartite"] else p["n_src"], count, p["a_dst"], p["q_dst"])
    if p["bipartite"]:
        dst += p["n_src"]
    if p["repeat_p"] > 0:
        dst = _repeating(rng, src, dst, p["repeat_p"])

    # Their times.
    t = np.cumsum(rng.exponential(1.0, count))
    t *= p["span"] * scale / t[-1]
    if p["quantum"]:
        t = np.floor(t / p["quantum"]) * p["quantum"]
    return {"src": src, "dst": dst, "t": t, "num_nodes": p["n_src"] + p["n_dst"]}


def _drawn(rng: np.random.Generator, num_ids: int, count: int, exponent: float, offset: float):
    cdf = np.cumsum((np.arange(1, num_ids + 1, dtype=np.float64) + offset) ** -exponent)
    ranks = np.searchsorted(cdf / cdf[-1], rng.random(count), side="right")
    return rng.permutation(num_ids)[np.minimum(ranks, num_ids - 1)]


def _repeating(rng: np.random.Generator, src, dst, share: float):
    """Events in order of their source; each run of repeated ones takes the destination of the event before it."""
    order = np.argsort(src, kind="stable")
    ordered = src[order]
    fresh = rng.random(len(src)) >= share
    fresh[0] = True
    fresh[1:] |= ordered[1:] != ordered[:-1]
    out = np.empty_like(dst)
    out[order] = dst[order][np.maximum.accumulate(np.where(fresh, np.arange(len(src)), 0))]
    return out

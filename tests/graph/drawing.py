"""Neighbors of a graph, and what they should be by looking at every event."""

import numpy as np

from streamd.graph import Draw, Neighbors
from tests.graph.reference_draws import REFERENCES, entries


def recent(graph, roots, before, k, since=0, direction="both"):
    return graph.sample(roots, since, before, Draw(fanout=k, direction=direction))


def uniform(graph, roots, before, k, seed, replace=False, since=0, direction="both"):
    return graph.sample(
        roots, since, before,
        Draw(fanout=k, strategy="uniform", seed=seed, replace=replace, direction=direction))


def wanted(src, dst, roots, since, before, draw, hidden=(), first=0):
    """The answer of a draw's plain reference, for each root. since, before: one for all."""
    until = min(max(before, first), first + len(src))
    answers = []
    for node in roots.tolist():
        visible = entries(src, dst, first, node, since, before, hidden, draw.direction)
        answers.append(REFERENCES[draw.strategy](
            visible, draw.fanout, node=node, before=until, seed=draw.seed, replace=draw.replace))
    return answers


def rows(found: Neighbors):
    """Answers as lists of (event, neighbor); the padding must be zeros."""
    assert not found.event[~found.mask].any() and not found.neighbor[~found.mask].any()
    assert (np.diff(found.mask.astype(int), axis=1) <= 0).all(), "what is found comes first"
    return [list(zip(e[m].tolist(), n[m].tolist(), strict=True))
            for e, n, m in zip(found.event, found.neighbor, found.mask, strict=True)]


def same(a, b):
    assert rows(a) == rows(b)

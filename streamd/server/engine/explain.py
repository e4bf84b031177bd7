"""Explains a score: the exact Shapley values of groups of facts and of the graph, and the sampled
neighbors.

In the cooperative game, v(S) is the score with all groups outside S at their baseline. For a
version, the baseline of a fact is its mean over the training data, which is 0 once standardized,
and the baseline of the graph is 0. For the rule, the baseline is a pair of unknown nodes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamd.events import Float32, Int64, Key
from streamd.graph.facts.columns import FACT_NAMES, NUM_FACTS
from streamd.graph.facts.groups import GROUPS, fact_words, group_words
from streamd.models.rule import rule_scores
from streamd.models.shapley import Float64, coalitions, shapley_shares
from streamd.serving.following_graph import ServerGraph
from streamd.serving.loaded_version import UNKNOWN, LoadedVersion
from streamd.serving.requests import (
    Explanation,
    Fact,
    Group,
    NeighborShare,
    NotFinite,
    Reason,
)

GRAPH = "graph"
"""The group of the graph's contribution."""
CANDIDATE_GROUPS = tuple(group for group in GROUPS if group.name != "source")
"""The groups that differ among the candidates of one source."""
GRAPH_WORDS = "the match of both embeddings: neighbors, memory and features of the two nodes"


@dataclass(frozen=True, slots=True)
class Pair:
    """The pair to explain. src, dst: node ids, or UNKNOWN. edge_set: its number. time_us: of the
    query, microseconds."""

    src: int
    dst: int
    edge_set: int
    time_us: int


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of one source, each to get one reason. dst_K: int64[K] node ids. The other fields are
    as in `Pair`."""

    src: int
    dst_K: Int64
    edge_set: int
    time_us: int


def explain(view: ServerGraph, served: LoadedVersion | None, pair: Pair) -> Explanation:
    """Explain the score of a pair. served: None for the rule. Raises: NotFinite."""
    facts_F = _facts(view, pair.src, pair.dst, pair)

    # The value of each coalition of groups of facts, then of each with the graph too.
    if served is None:
        baseline_F = _facts(view, UNKNOWN, UNKNOWN, pair)
        score = float(rule_scores(facts_F[None])[0])
        value_S = rule_scores(_coalition_rows(facts_F, baseline_F)).astype(np.float64)
        residual_S = None
    else:
        ends = np.array([pair.src]), np.array([pair.dst])
        score = float(served.scores(facts_F[None], *ends, view.live)[0])
        rows = _coalition_rows(facts_F, served.mean_facts)
        value_S = served.pair_logits(rows).astype(np.float64)
        # For a new destination the graph's part is its score by features.
        residual_S = served.residual(rows, *ends, view.live)
        if residual_S is not None:
            value_S = np.concatenate([value_S, value_S + residual_S])
    if not (np.isfinite(value_S).all() and np.isfinite(score)):
        raise NotFinite("a score is not finite")

    neighbors: tuple[NeighborShare, ...] = ()
    weights = "none"
    if served is not None and residual_S is not None:
        neighbors, weights = _neighbors(view, served, pair)
    return Explanation(
        score=score,
        baseline=float(value_S[0]),
        groups=_groups(facts_F, value_S, residual_S is not None),
        neighbors=neighbors,
        weights=weights,
    )


def reasons_of(
    view: ServerGraph,
    served: LoadedVersion | None,
    pairs: Pairs,
    score_K: Float32,
    rule: Callable[[Float32], Float32],
) -> tuple[Reason | None, ...]:
    """Find the group that adds most to the score of each pair.

    A group adds the difference between the score and the score with this group alone at its
    baseline. This takes 8 scores for each pair; Shapley values would take 512.

    served: None for the rule. score_K: float32[K], the scores of the pairs. rule: maps rows of
    facts to scores. Returns: K reasons, None for a pair to which no group adds anything. Raises:
    NotFinite.
    """
    if not len(pairs.dst_K):
        return ()
    # The score of each pair, and its score without each group.
    time_us, edge_set = np.array([pairs.time_us]), np.array([pairs.edge_set])
    facts_KF = view.facts.compute(np.array([pairs.src]), time_us, pairs.dst_K[None], edge_set)[0]
    if served is None:
        baseline_F = _facts(view, UNKNOWN, UNKNOWN, Pair(0, 0, pairs.edge_set, pairs.time_us))
        value_GK = _without_each(facts_KF, baseline_F, rule)
    else:
        # The graph's part keeps its value, though it may depend on facts too.
        version, times = served, 1 + len(CANDIDATE_GROUPS)
        ends = np.full(times * len(facts_KF), pairs.src), np.tile(pairs.dst_K, times)
        value_GK = _without_each(
            facts_KF, served.mean_facts, lambda rows: version.scores(rows, *ends, view.live)
        )
    adds_GK = value_GK[0] - value_GK[1:]

    # The graph adds the difference to the score of the facts alone.
    names = [group.name for group in CANDIDATE_GROUPS]
    if served is not None and served.has_embeddings:
        of_graph_K = score_K - served.pair_logits(facts_KF)
        adds_GK = np.concatenate([adds_GK, of_graph_K[None]])
        names.append(GRAPH)
    if not np.isfinite(adds_GK).all():
        raise NotFinite("a score is not finite")

    # The largest contribution of each pair, in words.
    found: list[Reason | None] = []
    for number, adds, facts_F in zip(adds_GK.argmax(0), adds_GK.max(0), facts_KF, strict=True):
        name = names[number]
        words = GRAPH_WORDS if name == GRAPH else group_words(name, facts_F)
        found.append(Reason(name, words, float(adds)) if adds > 0 else None)
    return tuple(found)


def _without_each(
    facts_KF: Float32, baseline_F: Float32, value: Callable[[Float32], Float32]
) -> Float32:
    """The values of the pairs, then their values with each of CANDIDATE_GROUPS at its baseline:
    float32[1 + groups, K]."""
    rows_GKF = np.repeat(facts_KF[None], 1 + len(CANDIDATE_GROUPS), 0)
    for number, group in enumerate(CANDIDATE_GROUPS, 1):
        for first in _blocks(baseline_F):
            columns = [first + column for column in group.columns]
            rows_GKF[number][:, columns] = baseline_F[columns]
    return value(rows_GKF.reshape(-1, rows_GKF.shape[2])).reshape(rows_GKF.shape[:2])


def _facts(view: ServerGraph, src: int, dst: int, pair: Pair) -> Float32:
    """The facts of src and dst at the time and in the edge set of `pair`: float32[F]."""
    row: Float32 = view.facts.compute(
        np.array([src]),
        np.array([pair.time_us]),
        np.array([[dst]]),
        np.array([pair.edge_set]),
    )[0, 0]
    return row


def _coalition_rows(facts_F: Float32, baseline_F: Float32) -> Float32:
    """The facts of each coalition of groups, float32[2**G, F]: the pair's own for groups in it, the
    baseline for the others. Columns that belong to no group, such as the edge set, keep their
    values."""
    has_SG = coalitions(len(GROUPS))
    rows = np.repeat(facts_F[None], len(has_SG), 0)
    for number, group in enumerate(GROUPS):
        for first in _blocks(facts_F):
            for column in group.columns:
                rows[~has_SG[:, number], first + column] = baseline_F[first + column]
    return rows


def _blocks(facts_F: Float32) -> tuple[int, ...]:
    """The first column of each block of facts in a row. There is one block, for the edge set of the
    query; with several edge sets a second one, for all sets together."""
    return (0,) if len(facts_F) == NUM_FACTS else (0, NUM_FACTS)


def _groups(facts_F: Float32, value_S: Float64, has_graph: bool) -> tuple[Group, ...]:
    """The groups with their shares, the largest absolute share first."""
    shares = shapley_shares(value_S)
    # The coalition of all groups; without one group its bit is 0.
    everyone = len(value_S) - 1
    groups = [
        Group(
            name=group.name,
            words=group_words(group.name, facts_F),
            share=float(shares[number]),
            without=float(value_S[everyone - (1 << number)]),
            facts=tuple(
                Fact(
                    name=FACT_NAMES[column],
                    all_sets=first > 0,
                    value=float(facts_F[first + column]),
                    words=fact_words(column, facts_F[first : first + NUM_FACTS]),
                )
                for first in _blocks(facts_F)
                for column in group.columns
            ),
        )
        for number, group in enumerate(GROUPS)
    ]
    if has_graph:
        without = float(value_S[everyone - (1 << len(GROUPS))])
        groups.append(Group(GRAPH, GRAPH_WORDS, float(shares[-1]), without, ()))
    return tuple(sorted(groups, key=lambda group: -abs(group.share)))


def _neighbors(
    view: ServerGraph, served: LoadedVersion, pair: Pair
) -> tuple[tuple[NeighborShare, ...], str]:
    """The sampled neighbors of source and candidate, the largest weight first, and the source of
    their weights."""
    roots = np.unique([pair.src, pair.dst])
    around, weights = served.looked_at(roots, view.live)
    # Hops that are time windows (DySAT) all have the two roots; otherwise only the first hop does.
    hops = around.hops if around.windows else around.hops[:1]
    found = []
    for of, end in (("src", pair.src), ("dst", pair.dst)):
        row = int(np.searchsorted(roots, end))
        total = sum(int(hop.mask_UK[row].sum()) for hop in hops)
        for number, hop in enumerate(hops):
            for k in np.flatnonzero(hop.mask_UK[row]):
                key = _key(view, int(around.node_M[hop.neighbor_UK[row, k]]))
                if key is None:
                    continue
                time_us = served.memory.now_us - int(hop.ago_UK[row, k])
                weight = float(weights[number][row, k]) if weights else 1.0 / total
                found.append(NeighborShare(key, of, time_us, weight))
    found.sort(key=lambda one: (one.of != "src", -one.weight, -one.time_us))
    return tuple(found), "attention" if weights else "uniform"


def _key(view: ServerGraph, node: int) -> Key | None:
    """The key of a node, None if it was deleted."""
    keys = view.log.keys
    return keys[node] if node < len(keys) else None

"""The slow, obvious reference of what the kernels compute: the meaning of the graph and of the facts, for tests."""

import math
from collections import OrderedDict
from collections.abc import Collection, Sequence

import numpy as np

from streamd.events import Int64
from streamd.graph.blocks import Neighbors
from streamd.graph.facts_kernels import (
    FLOOR_LOG_SHARE,
    NEVER_LOG_SECONDS,
    NUM_FACTS,
    PARTNERS,
    RATES,
    THREE_HOP_PARTNERS,
)


def entries(
    src_E: Int64, dst_E: Int64, first_edge: int, node: int, since_edge: int, before_edge: int, hidden: Collection[int] = (),
    directed: bool = False
) -> list[tuple[int, int]]:
    """(edge id, neighbour) of a node among edges [since_edge, before_edge), oldest first. hidden: ids of deleted edges."""
    out = []
    for e, (u, v) in enumerate(zip(src_E.tolist(), dst_E.tolist(), strict=True), first_edge):
        if since_edge <= e < before_edge and e not in hidden:
            if u == node:
                out.append((e, v))
            elif v == node and not directed:
                out.append((e, u))
    return out


def recent(
    src_E: Int64, dst_E: Int64, nodes_R: Int64, before_edge: int, k: int, hidden: Collection[int] = (), since_edge: int = 0
) -> Neighbors:
    """`BlockGraph.recent` by looking at every edge. hidden: ids of deleted edges."""
    neighbor = np.zeros((len(nodes_R), k), np.int64)
    eid = np.zeros((len(nodes_R), k), np.int64)
    mask = np.zeros((len(nodes_R), k), np.bool_)
    for r, node in enumerate(nodes_R.tolist()):
        newest = entries(src_E, dst_E, 0, node, since_edge, before_edge, hidden)[::-1]
        for i, (e, other) in enumerate(newest[:k]):
            neighbor[r, i], eid[r, i], mask[r, i] = other, e, True
    return Neighbors(neighbor, eid, mask)


class ReferenceFacts:
    """`PairFacts` by dictionaries and lists."""

    def __init__(self, half_lives_seconds: Sequence[float], max_pairs: int) -> None:
        self.half_lives, self.max_pairs = list(half_lives_seconds), max_pairs
        self.events: list[tuple[int, int | None, int]] = []
        self.seen: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.last_dst: dict[int, int] = {}
        self.partners: dict[int, list[int]] = {}
        self.meetings: OrderedDict[tuple[int, int], dict[str, dict[int, object]]] = OrderedDict()
        self.sighted: list[int] = []

    def row(self, u: int, c: int, t: int) -> list[float]:
        """The facts about source u and candidate c for a query at time t (microseconds)."""
        pair = self.meetings.get((min(u, c), max(u, c)))
        met = pair["met"].get(u, []) if pair else []
        assert isinstance(met, list)
        seen = self.seen.get(u, 0)
        weights = [math.fsum(rate ** (seen - k) for k in met) for rate in RATES]
        age = seen - met[-1] if met else seen
        out = [*weights, float(bool(met)), math.log1p(age)]
        for a in (u, c):
            sent = pair["sent"].get(a) if pair else None
            out.append(self._log_seconds(t, sent))  # type: ignore[arg-type]
        for half_life in self.half_lives:
            weight = {x: 2.0 ** (-(t - when) / 1e6 / half_life) for x, (_, _, when) in enumerate(self.events)}
            total = math.fsum(weight.values())
            mine = math.fsum(weight[x] for x, (_, v, _) in enumerate(self.events) if v == c)
            out.append(max(math.log(mine / total), FLOOR_LOG_SHARE) if mine > 0 else FLOOR_LOG_SHARE)
        out += [self._log_seconds(t, self.last_dst.get(c)), self._log_seconds(t, self.last.get(u)),
                math.log1p(seen), math.log1p(self.seen.get(c, 0))]
        common = sum(a == b for a in self._ring(u, PARTNERS) for b in self._ring(c, PARTNERS))
        paths = sum(z == c for x in self._ring(u, THREE_HOP_PARTNERS) for y in self._ring(x, THREE_HOP_PARTNERS)
                    for z in self._ring(y, THREE_HOP_PARTNERS))
        out += [math.log1p(common), math.log1p(paths)]
        assert len(out) == NUM_FACTS
        return out

    def update(self, u: int, v: int, t: int) -> None:
        """Take in one event."""
        self.events.append((u, v, t))
        key = (min(u, v), max(u, v))
        pair = self.meetings.setdefault(key, {"met": {}, "sent": {}})
        self.meetings.move_to_end(key)
        if len(self.meetings) > self.max_pairs:
            self.meetings.popitem(last=False)
        for a, b in ((u, v), (v, u))[: 1 + (u != v)]:
            self.seen[a] = self.seen.get(a, 0) + 1
            met = pair["met"].setdefault(a, [])
            assert isinstance(met, list)
            met.append(self.seen[a])
            self.last[a] = t
            self.partners.setdefault(a, []).append(b)
        pair["sent"][u] = t
        self.last_dst[v] = t
        if v not in self.sighted:
            self.sighted.append(v)

    def forget(self, gone: Collection[int]) -> None:
        """Delete nodes: their pairs, what is known of them, and their places among the last partners of others."""
        self.events = [(u, None if v in gone else v, t) for u, v, t in self.events]
        for table in (self.seen, self.last, self.last_dst, self.partners):
            for node in gone:
                table.pop(node, None)
        for node, partners in self.partners.items():
            self.partners[node] = [p for p in partners[-PARTNERS:] if p not in gone]
        for pair in [p for p in self.meetings if p[0] in gone or p[1] in gone]:
            del self.meetings[pair]

    def _ring(self, node: int, length: int) -> list[int]:
        return self.partners.get(node, [])[-length:]

    @staticmethod
    def _log_seconds(now: int, then: int | None) -> float:
        return NEVER_LOG_SECONDS if then is None else min(math.log(max(now - then, 1) / 1e6), NEVER_LOG_SECONDS)

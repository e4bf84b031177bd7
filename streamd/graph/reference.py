"""The slow, obvious reference of what the kernels compute: the meaning of the graph and of the facts, for tests."""

import math
from collections import OrderedDict
from collections.abc import Collection, Sequence

from streamd.events import Int64
from streamd.graph.facts_kernels import (
    FLOOR_LOG_SHARE,
    NEVER_LOG_SECONDS,
    NUM_FACTS,
    PARTNERS,
    RATES,
    THREE_HOP_PARTNERS,
)


def entries(
    src_E: Int64, dst_E: Int64, first_event: int, node: int, since: int, before: int,
    hidden: Collection[int] = (), direction: str = "both",
) -> list[tuple[int, int]]:
    """(event id, neighbour) of a node among events [since, before), oldest first, by looking at
    every event. hidden: ids of deleted events."""
    out = []
    for event, (u, v) in enumerate(zip(src_E.tolist(), dst_E.tolist(), strict=True), first_event):
        if since <= event < before and event not in hidden:
            if u == node and direction in ("out", "both"):
                out.append((event, v))
            elif v == node and direction in ("in", "both"):
                out.append((event, u))
    return out


def recent(
    visible: Sequence[tuple[int, int]], fanout: int, **_: object
) -> list[tuple[int, int]]:
    """The newest of a root's entries, newest first."""
    return list(visible[::-1][:fanout])


def uniform(
    visible: Sequence[tuple[int, int]], fanout: int, *, node: int, before: int, seed: int,
    replace: bool,
) -> list[tuple[int, int]]:
    """Entries of a root, each as likely as any other; draws are a hash of seed, node, the query's
    end and their number."""
    count = len(visible)
    if count == 0:
        return []
    if count <= fanout and not replace:
        return list(visible[::-1])
    mask = 2**64 - 1
    state = _mixed((_mixed(seed + 0x9E3779B97F4A7C15 * (node + 1)) + before) & mask)
    chosen: list[int] = []
    for i in range(fanout):
        bound = count if replace else count - fanout + i + 1
        pick = ((_mixed(state + i) >> 32) * bound) >> 32
        chosen.append(bound - 1 if not replace and pick in chosen else pick)
    return [visible[number] for number in chosen]


def _mixed(x: int) -> int:
    """splitmix64's finaliser."""
    mask = 2**64 - 1
    x &= mask
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
    return x ^ (x >> 31)


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

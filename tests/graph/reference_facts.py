"""The slow, obvious reference of what the facts' kernels compute: the meaning of the facts, for
tests."""

import math
from collections import OrderedDict
from collections.abc import Collection, Sequence

import numpy as np

from streamd.graph.facts.columns import CANDIDATE_WEIGHTS, LOG_SHARES, PAIR_WEIGHTS, FactColumn
from streamd.graph.facts.covisits import COVISIT_SCALE
from streamd.graph.facts.fact_arrays import COVISITS, HOURS, PARTNERS, RATES, TRANSITIONS, VISITED
from streamd.graph.facts.hour_table import ANYONE, HOUR_US, NODE_BITS
from streamd.graph.facts.kernels import (
    FLOOR_LOG_SHARE,
    KEPT_REPEATS,
    NEVER_LOG_EVENTS,
    NEVER_LOG_SECONDS,
    NEVER_LOG_SHARE,
    THREE_HOP_PARTNERS,
    UNSEEN_EVENTS,
    UNSEEN_HOURS,
    UNSEEN_PAIR,
    UNSEEN_SOURCE,
    UNSEEN_TRANSITIONS,
)
from streamd.graph.hashing import mix


class ReferenceFacts:
    """`PairFacts` by dictionaries and lists."""

    def __init__(self, half_lives_seconds: Sequence[float], max_pairs: int) -> None:
        self.half_lives = list(half_lives_seconds)
        self.max_pairs = max_pairs
        self.events: list[tuple[int, int | None, int]] = []
        self.seen: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.last_dst: dict[int, int] = {}
        self.partners: dict[int, list[int]] = {}
        self.meetings: OrderedDict[tuple[int, int], dict[str, dict[int, object]]] = OrderedDict()
        self.num_met: dict[tuple[int, int], int] = {}
        self.destination_order: list[int] = []
        self.repeats: dict[int, float] = {}
        self.pairs_begun: dict[int, int] = {}
        self.gap: dict[int, int] = {}
        self.transitions: dict[int, tuple[int, int, int, int]] = {}
        """By place in the table: from, to, how often, and events of the first at the last time."""
        self.hours: dict[int, tuple[int, int, int, int]] = {}
        """By place in the table: source or ANYONE, destination, hour of the day, events."""
        self.visited: dict[int, list[int]] = {}
        """Distinct destinations of each source, in order of its last event to them."""
        self.num_sources: dict[int, int] = {}
        self.covisits: dict[int, tuple[int, int, int]] = {}
        """By place in the table: smaller destination, larger, sources that went to both."""

    def popularity(self, i: int, c: int, t: int) -> tuple[float, float]:
        """The weights at time t (microseconds) of all events, and of those to candidate c. i: which
        half-life."""
        weight = {
            x: 2.0 ** (-(t - when) / 1e6 / self.half_lives[i])
            for x, (_, _, when) in enumerate(self.events)
        }
        mine = math.fsum(weight[x] for x, (_, v, _) in enumerate(self.events) if v == c)
        return math.fsum(weight.values()), mine

    def row(self, u: int, c: int, t: int) -> list[float]:
        """The facts about source u and candidate c for a query at time t (microseconds), in the
        order of FactColumn."""
        out: dict[FactColumn, float] = {}

        # What the two had with one another.
        pair = self.meetings.get((min(u, c), max(u, c)))
        met = pair["met"].get(u, []) if pair else []
        assert isinstance(met, list)
        seen = self.seen.get(u, 0)
        columns = list(FactColumn)
        for column, rate in zip(columns[PAIR_WEIGHTS], RATES, strict=True):
            out[column] = math.fsum(rate ** (seen - k) for k in met)
        out[FactColumn.MET] = float(bool(met))
        out[FactColumn.LOG_EVENTS_SINCE_MET] = math.log1p(seen - met[-1] if met else seen)
        for column, a in (
            (FactColumn.LOG_SECONDS_SINCE_SENT, u),
            (FactColumn.LOG_SECONDS_SINCE_RECEIVED, c),
        ):
            sent = pair["sent"].get(a) if pair else None
            out[column] = self._log_seconds(t, sent)  # type: ignore[arg-type]

        # The candidate's popularity.
        for i, column in enumerate(columns[LOG_SHARES]):
            total, mine = self.popularity(i, c, t)
            out[column] = (
                max(math.log(mine / total), FLOOR_LOG_SHARE) if mine > 0 else FLOOR_LOG_SHARE
            )
        out[FactColumn.LOG_SECONDS_SINCE_DESTINATION] = self._log_seconds(t, self.last_dst.get(c))
        out[FactColumn.LOG_SECONDS_SINCE_SOURCE] = self._log_seconds(t, self.last.get(u))
        out[FactColumn.LOG_SOURCE_EVENTS] = math.log1p(seen)
        out[FactColumn.LOG_CANDIDATE_EVENTS] = math.log1p(self.seen.get(c, 0))

        # The pair as the candidate counts.
        met = pair["met"].get(c, []) if pair else []
        assert isinstance(met, list)
        seen = self.seen.get(c, 0)
        for column, rate in zip(columns[CANDIDATE_WEIGHTS], RATES, strict=True):
            out[column] = math.fsum(rate ** (seen - k) for k in met)
        out[FactColumn.LOG_CANDIDATE_EVENTS_SINCE_MET] = math.log1p(seen - met[-1] if met else seen)

        # The habits of both.
        for node, repeats, begun, gap in (
            (
                u,
                FactColumn.SOURCE_REPEATS,
                FactColumn.LOG_SOURCE_PARTNERS,
                FactColumn.LOG_SOURCE_GAP,
            ),
            (
                c,
                FactColumn.CANDIDATE_REPEATS,
                FactColumn.LOG_CANDIDATE_PARTNERS,
                FactColumn.LOG_CANDIDATE_GAP,
            ),
        ):
            out[repeats] = self.repeats.get(node, 0.0)
            out[begun] = math.log1p(self.pairs_begun.get(node, 0))
            out[gap] = self._log_seconds(self.gap.get(node, 0), 0 if node in self.gap else None)

        # What followed an event with the source's last partner.
        out[FactColumn.LOG_TRANSITION_SHARE] = NEVER_LOG_SHARE
        out[FactColumn.LOG_EVENTS_SINCE_TRANSITION] = NEVER_LOG_EVENTS
        for before in self._ring(u, 1):
            seen = self.seen.get(before, 0)
            start, end, count, at = self.transitions.get(self._place(before, c), (-1, -1, 0, 0))
            if (start, end) != (before, c):
                count = 0
            else:
                out[FactColumn.LOG_EVENTS_SINCE_TRANSITION] = math.log1p(seen - at)
            share = (count + UNSEEN_TRANSITIONS) / (seen + UNSEEN_EVENTS)
            out[FactColumn.LOG_TRANSITION_SHARE] = math.log(share)

        # How much of the source's events, and at which hours.
        num_met = self.num_met.get((min(u, c), max(u, c)), 0)
        out[FactColumn.LOG_PAIR_SHARE] = math.log(
            (num_met + UNSEEN_PAIR) / (self.seen.get(u, 0) + UNSEEN_SOURCE)
        )
        out[FactColumn.LOG_PAIR_HOUR_SHARE] = self._log_hour_share(
            self._around(u, c, t) if pair else 0, num_met
        )
        out[FactColumn.LOG_CANDIDATE_HOUR_SHARE] = self._log_hour_share(
            self._around(ANYONE, c, t), self.seen.get(c, 0)
        )

        # Who went to the source's last destinations and to the candidate.
        shares = [0.0]
        for x in self.visited.get(u, [])[-VISITED:]:
            ends = (min(x, c), max(x, c))
            if x == c or c not in self.num_sources:
                continue
            *named, count = self.covisits.get(self._covisit_place(*ends), (-1, -1, 0))
            if tuple(named) == ends:
                shares.append(count / math.sqrt(self.num_sources[x] * self.num_sources[c]))
        out[FactColumn.LOG_COVISITS] = math.log1p(COVISIT_SCALE * math.fsum(shares))
        out[FactColumn.LOG_GREATEST_COVISITS] = math.log1p(COVISIT_SCALE * max(shares))

        # Whom both met.
        common = sum(a == b for a in self._ring(u, PARTNERS) for b in self._ring(c, PARTNERS))
        paths = sum(
            z == c
            for x in self._ring(u, THREE_HOP_PARTNERS)
            for y in self._ring(x, THREE_HOP_PARTNERS)
            for z in self._ring(y, THREE_HOP_PARTNERS)
        )
        out[FactColumn.LOG_COMMON_PARTNERS] = math.log1p(common)
        out[FactColumn.LOG_THREE_HOP_PATHS] = math.log1p(paths)
        return [out[column] for column in FactColumn]

    def update(self, u: int, v: int, t: int) -> None:
        """Take in one event."""
        self.events.append((u, v, t))
        key = (min(u, v), max(u, v))
        pair = self.meetings.setdefault(key, {"met": {}, "sent": {}})
        self.num_met[key] = self.num_met.get(key, 0) + 1
        self.meetings.move_to_end(key)

        # The dictionary is in order of touch: the first pair was touched the longest ago.
        if len(self.meetings) > self.max_pairs:
            del self.num_met[self.meetings.popitem(last=False)[0]]

        # What follows the source's event before.
        for before in self._ring(u, 1):
            start, end, count, _ = self.transitions.get(self._place(before, v), (-1, -1, 0, 0))
            count = count + 1 if (start, end) == (before, v) else 1
            at = self.seen.get(before, 0)
            self.transitions[self._place(before, v)] = (before, v, count, at)

        # The hour of the day.
        hour = t // HOUR_US % 24
        for source in (u, ANYONE):
            place = self._hour_place(source, v, hour)
            *named, events = self.hours.get(place, (-1, -1, -1, 0))
            events = events + 1 if named == [source, v, hour] else 1
            self.hours[place] = (source, v, hour, events)

        # Both ends see the event; a self loop has one end.
        for a, b in ((u, v), (v, u))[: 1 + (u != v)]:
            for partner in self._ring(a, 1):
                kept = KEPT_REPEATS * self.repeats.get(a, 0.0)
                self.repeats[a] = kept + (1 - KEPT_REPEATS) * (partner == b)
            if not pair["met"].get(a):
                self.pairs_begun[a] = self.pairs_begun.get(a, 0) + 1
            if a in self.last:
                self.gap[a] = t - self.last[a]
            self.seen[a] = self.seen.get(a, 0) + 1
            met = pair["met"].setdefault(a, [])
            assert isinstance(met, list)
            met.append(self.seen[a])
            self.last[a] = t
            self.partners.setdefault(a, []).append(b)

        # Of a pair's first event, the destination and those that the source went to before.
        visited = self.visited.setdefault(u, [])
        if u not in pair["sent"]:
            for x in visited[-VISITED:]:
                ends = (min(x, v), max(x, v))
                if x == v:
                    continue
                *named, count = self.covisits.get(self._covisit_place(*ends), (-1, -1, 0))
                count = count + 1 if tuple(named) == ends else 1
                self.covisits[self._covisit_place(*ends)] = (*ends, count)
            self.num_sources[v] = self.num_sources.get(v, 0) + 1
        self.visited[u] = [x for x in visited if x != v] + [v]

        pair["sent"][u] = t
        self.last_dst[v] = t
        if v not in self.destination_order:
            self.destination_order.append(v)

    def forget(self, gone: Collection[int]) -> None:
        """Delete nodes: their pairs, what is known of them, and their places among the last
        partners of others."""
        # The events stay: they still count towards the total of all destinations.
        self.events = [(u, None if v in gone else v, t) for u, v, t in self.events]
        tables = (self.seen, self.last, self.last_dst, self.partners)
        counts = (self.repeats, self.pairs_begun, self.gap, self.visited, self.num_sources)
        for table in (*tables, *counts):
            for node in gone:
                table.pop(node, None)
        for place, (start, end, _, _) in list(self.transitions.items()):
            if start in gone or end in gone:
                del self.transitions[place]
        for place, (start, end, _, _) in list(self.hours.items()):
            if start in gone or end in gone:
                del self.hours[place]
        for place, (start, end, _) in list(self.covisits.items()):
            if start in gone or end in gone:
                del self.covisits[place]
        for node, visited in self.visited.items():
            self.visited[node] = [x for x in visited[-VISITED:] if x not in gone]
        # Only the last partners are remembered, so older ones do not take the places of deleted
        # ones.
        for node, partners in self.partners.items():
            self.partners[node] = [p for p in partners[-PARTNERS:] if p not in gone]
        for pair in [p for p in self.meetings if p[0] in gone or p[1] in gone]:
            del self.meetings[pair], self.num_met[pair]

    @staticmethod
    def _place(a: int, v: int) -> int:
        """A transition's place in the table."""
        key = np.array([(a << 32 | (v & (2**32 - 1))) + 1], np.uint64)
        return int(mix(key)[0]) % TRANSITIONS

    @staticmethod
    def _covisit_place(x: int, v: int) -> int:
        with np.errstate(over="ignore"):
            return int(mix(np.array([x, v], np.uint64)).sum()) % COVISITS

    @staticmethod
    def _hour_place(a: int, v: int, hour: int) -> int:
        key = np.array([(a << NODE_BITS | v) + 1], np.uint64)
        return (int(mix(key)[0]) + hour) % HOURS

    def _around(self, a: int, v: int, t: int) -> int:
        """Events a -> v within an hour of the hour of the day of t."""
        if v not in self.seen:
            return 0
        found = 0
        for step in (-1, 0, 1):
            hour = (t // HOUR_US + step) % 24
            *named, events = self.hours.get(self._hour_place(a, v, hour), (-1, -1, -1, 0))
            found += events * (named == [a, v, hour])
        return found

    @staticmethod
    def _log_hour_share(around: int, events: int) -> float:
        # Three of 24 hours, in one of two directions.
        return math.log((min(around, events) + UNSEEN_HOURS / 16) / (events + UNSEEN_HOURS))

    def _ring(self, node: int, length: int) -> list[int]:
        return self.partners.get(node, [])[-length:]

    @staticmethod
    def _log_seconds(now: int, then: int | None) -> float:
        return (
            NEVER_LOG_SECONDS
            if then is None
            else min(math.log(max(now - then, 1) / 1e6), NEVER_LOG_SECONDS)
        )

"""Alarms on flows with planted intrusions, beside those of two rules with the same number of alarms; and the shares of p-values on real streams.

The log grows by an hour; the scoring role scores it with the version of the hour before, then the trainer learns it. The rules' surprises go
through the same calibration: `new pair` knows only whether the two met before (ties are random), `rare pair` is -log of how often they met, and
how popular the destination is, over the source's events. `python -m tests.benchmarks.alarms [--seeds 0,1,2]` prints JSON for each seed, and
`--stream wikipedia --days 10` the shares on a stream of the demo.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import tempfile
from collections import Counter, deque
from collections.abc import Hashable, Iterable
from pathlib import Path

import numpy as np

from streamd.clock import SystemClock
from streamd.demo.streams import find_stream
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.graph.facts.columns import NUM_FACTS, FactColumn
from streamd.registry import Registry
from streamd.scoring.alarms import DAY_US, Alarms
from streamd.scoring.rarity import MAX_KEPT, MIN_EVENTS, NewestValues
from streamd.scoring.record import ScoreRecord
from streamd.scoring.scorer import Scored
from streamd.settings.loading import Settings, load_settings
from streamd.settings.paths import Paths
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.trainer import Trainer
from streamd.windows import next_window
from tests.benchmarks.flows import HOUR, KINDS, QUIET_DAYS, Flows, flows
from tests.benchmarks.measure import Row, pick_size
from tests.builders import batch
from tests.scoring.world import Scoring

SIZE = pick_size({"days": 14, "a_day": 3_000}, {"days": 6, "a_day": 500})
LEVELS = 0.1, 0.01, 0.001
RULES = "new pair", "rare pair"
ALONE = "rare pair, each event alone"


class Rules:
    """The surprises of an event to rules that count."""

    def __init__(self) -> None:
        self._pairs, self._dst, self._src, self._total = Counter(), Counter(), Counter(), 0

    def surprises(self, src: int, dst: int) -> tuple[float, float]:
        """Of RULES, before the event; then it is counted."""
        met = self._pairs[src, dst]
        share = (met + (self._dst[dst] + 0.1) / (self._total + 1)) / (self._src[src] + 1)
        self._pairs[src, dst] += 1
        self._dst[dst] += 1
        self._src[src] += 1
        self._total += 1
        return float(not met), -math.log(share)


class EachAlone:
    """Alarms of a rule that compares each event alone, with the same wanted number a day and the same quiet time."""

    def __init__(self, per_day: float, quiet_seconds: float):
        self._per_day, self._quiet_us = per_day, int(quiet_seconds * 1_000_000)
        self._newest, self._times, self._last = NewestValues(MAX_KEPT), deque(maxlen=10_000), {}
        self._rng = np.random.default_rng(0)

    def raises(self, src: int, time_us: int, value: float) -> bool:
        p_value = self._newest.p_value(value, float(self._rng.random()))
        self._newest.add(value)
        self._times.append(time_us)
        days = (self._times[-1] - self._times[0]) / DAY_US
        is_rare = len(self._newest) > MIN_EVENTS and p_value <= min(0.01, self._per_day * days / max(1, len(self._times) - 1))
        if not is_rare or time_us < self._last.get(src, -self._quiet_us) + self._quiet_us:
            return False
        self._last[src] = time_us
        return True


def found(alarms: list[int], of: Flows) -> dict[str, float]:
    """alarms: event ids. Returns: their number a day, the share that is of an intrusion, and the share of intrusions of each kind with an alarm."""
    days = SIZE["days"] - QUIET_DAYS
    incidents = {int(of.incident_E[event]) for event in alarms} - {-1}
    hits = sum(of.incident_E[event] >= 0 for event in alarms)
    kinds = Counter(of.kinds[number] for number in incidents)
    return {"a day": len(alarms) / days, "precision": hits / max(1, len(alarms)), "found": len(incidents) / len(of.kinds),
            **{kind: kinds[kind] / of.kinds.count(kind) for kind in KINDS}}


def replay(folder: Path, src, dst, time_E, keys: list[str], begin: int) -> tuple[list[int], dict[str, list[int]], list[float]]:
    """Score each hour, then learn it. begin: first event that counts. Returns: events with an alarm, those of each rule, and the p-values."""
    chosen = settings_of(folder / "live")
    scoring: Scoring | None = None
    raters = {name: Alarms(folder / name.replace(" ", "-"), chosen.server) for name in RULES}
    raised: dict[str, list[int]] = {name: [] for name in (*RULES, ALONE)}
    alone = EachAlone(chosen.server.alarms_per_day, chosen.server.alarm_quiet_seconds)
    rules, registry, trainer, at = Rules(), Registry.of(chosen), None, 0
    for hour in range(int(time_E[0] // (HOUR * 10**6)), int(time_E[-1] // (HOUR * 10**6)) + 1):
        end = int(np.searchsorted(time_E, (hour + 1) * HOUR * 10**6))
        # At night there may be none.
        if at == end:
            continue
        # Closed again, so that the trainer adds its own lines to the log.
        with contextlib.closing(LogWriter(chosen.data_dir, Schema(), 1_000_000)) as writer:
            new = [keys[n] for n in range(len(writer.keys), max([-1, *src[at:end], *dst[at:end]]) + 1)]
            writer.keys.update({key: len(writer.keys) + n for n, key in enumerate(new)})
            writer.commit(batch(Schema(), src[at:end], dst[at:end], time_E[at:end], new), Progress(), (hour + 1) * HOUR * 10**6)
        if scoring is not None:
            scoring.turn(seconds=600)
        if trainer is None:
            log = LogReader.open(chosen.data_dir, keep_keys=False)
            trainer = Trainer(chosen, Paths.of(chosen, "train"), "cpu", log, registry, SystemClock(), Heartbeat(chosen.data_dir, "train"))
        trainer.log.read()
        while (window := next_window(trainer.log, trainer.edge, HOUR * 10**6)) is not None:
            trainer.process(window)
        at = end
        if registry.champion():
            scoring = scoring or Scoring(chosen)
            scoring.ready()
    records = {record.event: record for record in scoring.topic.records}
    for event in range(len(src)):
        of_rules = rules.surprises(int(src[event]), int(dst[event]))
        if (record := records.get(event)) is None:
            continue
        for name, value in zip(RULES, of_rules, strict=True):
            rated = raters[name].rate(scored_of(record, int(src[event]), value))
            if rated.alarm is not None and event >= begin:
                raised[name].append(event)
        if alone.raises(int(src[event]), record.time_us, of_rules[1]) and event >= begin:
            raised[ALONE].append(event)
    live = [one["event"] for one in scoring.topic.alarms if one["event"] >= begin]
    return live, raised, [record.p_value for record in records.values() if record.p_value is not None]


def scored_of(record: ScoreRecord, src: int, value: float) -> Scored:
    """A rule's event: its counts are as rare as its surprise, so the order is that of the surprises."""
    facts_F = np.zeros(NUM_FACTS, np.float32)
    facts_F[[FactColumn.LOG_SHARE_5, FactColumn.LOG_PAIR_SHARE]] = -value
    facts_F[[FactColumn.MET, FactColumn.LOG_SOURCE_EVENTS]] = 1, 99
    return Scored(dataclasses.replace(record, surprise=None, p_value=None), src, 0, value, facts_F)


def settings_of(folder: Path) -> Settings:
    return load_settings(None, {"data_dir": folder, "stream.time_unit": "us", "bootstrap.max_events": 0, "server.score_topic": "scores",
                                "server.alarm_topic": "alarms"}, environ={})[0]


def numbered(src: Iterable[Hashable], dst: Iterable[Hashable]) -> tuple[np.ndarray, np.ndarray, list]:
    """Number nodes in the order of their first event, as a log does. Returns: both ends, int64[E], and the nodes by number."""
    order: dict = {}
    ends = [(order.setdefault(a, len(order)), order.setdefault(b, len(order))) for a, b in zip(src, dst, strict=True)]
    return *np.array(ends).T, list(order)


def shares(p_values: list[float]) -> dict[str, float]:
    """The shares of p-values that should be LEVELS."""
    return {f"p <= {level:g}": float(np.mean(np.array(p_values) <= level)) for level in LEVELS}


def of_flows(seed: int) -> dict[str, dict[str, float]]:
    """The alarms on the flows of a seed."""
    of = flows(seed=seed, **SIZE)
    src, dst, nodes = numbered(of.src_E.tolist(), of.dst_E.tolist())
    begin = int(np.searchsorted(of.time_E, of.time_E[0] + QUIET_DAYS * 24 * HOUR * 10**6))
    with tempfile.TemporaryDirectory() as folder:
        live, raised, p_values = replay(Path(folder), src, dst, of.time_E, [of.hosts[n] for n in nodes], begin)
    return {"streamd": found(live, of) | shares(p_values), **{name: found(events, of) for name, events in raised.items()}}


def of_stream(name: str, days: int) -> dict[str, float]:
    """The shares of p-values on the first days of a stream of the demo, and the alarms a day after the first two."""
    events = [json.loads(one.value) for window in find_stream(name).windows(days) for one in window]
    src, dst, nodes = numbered((e["src"] for e in events), (e["dst"] for e in events))
    time_E = np.array([e["time"] for e in events]) * 10**6
    begin = int(np.searchsorted(time_E, time_E[0] + 2 * 24 * HOUR * 10**6))
    with tempfile.TemporaryDirectory() as folder:
        live, _, p_values = replay(Path(folder), src, dst, time_E, nodes, begin)
    return {"events": len(events), "alarms a day": len(live) / (days - 2)} | shares(p_values)


def run() -> list[Row]:
    figures = of_flows(0)
    best = max((*RULES, ALONE), key=lambda name: figures[name]["precision"])
    return [Row("alarms on intrusions, precision", 100 * figures["streamd"]["precision"], "%", 100 * figures[best]["precision"], best),
            Row("intrusions with an alarm", 100 * figures["streamd"]["found"], "%", 100 * figures[best]["found"], best),
            Row("events with p <= .01", 100 * figures["streamd"]["p <= 0.01"], "%", 1.0, "as many as the name says")]


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in figures.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--stream")
    parser.add_argument("--days", type=int, default=10)
    given = parser.parse_args()
    if given.stream:
        print(json.dumps({"stream": given.stream} | rounded(of_stream(given.stream, given.days))))
    else:
        for one in map(int, given.seeds.split(",")):
            print(json.dumps({"seed": one} | {name: rounded(row) for name, row in of_flows(one).items()}), flush=True)

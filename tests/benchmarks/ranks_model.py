"""What more ranks would take than this machine has cores: modelled, not measured.

`python -m tests.benchmarks ranks-model`; `ranks-counts-gdelt-tgat` counts edges and bytes alone, which a busy machine does not change.
The ranks are threads of one process that take turns, so that each has a core to itself while it works; what a rank computes is its
thread's CPU time between two exchanges. A chunk takes as long as its slowest rank computes; a round takes a latency, and as long as the
largest rank's bytes need. Recording and learning run one after the other, as they do where a rank has one core. Two ranks are modelled
and measured, the same events by the same program; only where the two differ by a quarter of the measured at most are more ranks
modelled.
"""

import statistics
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial

import numpy as np

from streamd.ranks import Ranks
from tests.benchmarks.measure import Row, pick_size
from tests.benchmarks.ranks import FEATURES, WARM, WINDOW, Learning, log_of, mrr_of, spread, started
from tests.ranks import threads

EDGES = WINDOW
"""Events that are learned: one chunk of 4,000, or seven of 600."""
SIZES = pick_size((4, 8, 16, 32, 64), (4,))
"""Ranks beyond two. Each modelled rank holds the pair facts, and computes again what every rank computes."""
ROUNDS = pick_size(3, 1)
"""Measurements of two ranks, of which the median counts."""
NEAR = 0.25
"""Most that the model may be away from two measured ranks, as a share of what was measured."""


@dataclass(frozen=True, slots=True)
class Link:
    """latency: seconds of a round that moves next to nothing. bandwidth: bytes a second of one rank."""

    name: str
    latency: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Work:
    """What ranks did. seconds_RC: CPU time of each rank in each chunk. bytes_RN: of each rank in each round, what it sent to
    others or received from them, whichever is more. sent_R: bytes that each rank sent to others."""

    seconds_RC: np.ndarray
    bytes_RN: np.ndarray
    sent_R: np.ndarray

    def over(self, link: Link) -> float:
        """Seconds that it takes over a link."""
        rounds = self.bytes_RN.shape[1] * link.latency + self.bytes_RN.max(0).sum() / link.bandwidth
        return float(self.seconds_RC.max(0).sum() + rounds)

    @property
    def unevenness(self) -> float:
        """The slowest rank's compute over the mean, on average over the chunks."""
        return float((self.seconds_RC.max(0) / self.seconds_RC.mean(0)).mean())


def beyond_loopback(loopback: Link) -> tuple[Link, ...]:
    """Links between machines, by assumption: what a round costs the processes on loopback, plus 20 or 10 microseconds of cards and
    switch; and the line's full rate, which gloo may not reach."""
    return (Link("25 GbE", loopback.latency + 20e-6, 25e9 / 8), Link("100 GbE", loopback.latency + 10e-6, 100e9 / 8))


class Turns:
    """One rank works at a time: a rank has the turn but while it waits for the others."""

    def __init__(self):
        self._turn = threading.Lock()

    def begin(self):
        self._turn.acquire()

    def end(self):
        self._turn.release()


class NotedGroup:
    """A group that gives the turn away while it waits, and leaves what it costs to exchange out of the rank's compute."""

    def __init__(self, group, noted):
        self._group, self._noted, self.rank, self.size = group, noted, group.rank, group.size

    def all_to_all(self, rows, sent, received):
        self._noted.pause()
        try:
            out = self._group.all_to_all(rows, sent, received)
        finally:
            self._noted.resume()
        row = rows.element_size() * int(np.prod(rows.shape[1:]))
        away, here = (row * (sum(counts) - counts[self.rank]) for counts in (sent, received))
        self._noted.bytes.append(max(away, here))
        self._noted.sent += away
        return out


class Noted:
    """What one rank, a thread, did since `start`."""

    def __init__(self, turns):
        self._turns, self.seconds, self.bytes, self._sum, self._since = turns, [], [], 0.0, 0.0
        self.sampled = self.sent = 0
        self.resume()

    def pause(self):
        self._sum += time.thread_time() - self._since
        self._turns.end()

    def resume(self):
        self._turns.begin()
        self._since = time.thread_time()

    def start(self):
        self.seconds, self.bytes, self._sum, self._since = [], [], 0.0, time.thread_time()
        self.sampled = self.sent = 0

    def chunk(self):
        """A chunk ends here."""
        now = time.thread_time()
        self.seconds.append(self._sum + now - self._since)
        self._sum, self._since = 0.0, now


def counted(graph, noted) -> None:
    """Count the edges that a rank's own part of the graph samples."""
    own = getattr(graph, "_own", graph)
    sample = own.sample

    def counting(*args):
        found = sample(*args)
        noted.sampled += int(found.mask.sum())
        return found

    own.sample = counting


def work_of(folder: str, name: str, chunk: int, size: int) -> tuple[Work, list[int], float]:
    """Learn with so many ranks in turns. Returns: what they did, the edges that each sampled of its own nodes, and the MRR."""
    import torch

    turns = Turns()

    def one(ranks):
        # As measured ranks have; what further threads compute would not be counted.
        torch.set_num_threads(1)
        noted = Noted(turns)
        try:
            if size > 1:
                ranks = Ranks(*(NotedGroup(group, noted) for group in (ranks.recording, ranks.learning, ranks.rows)), ranks.owned)
            learning = Learning(folder, name, chunk, ranks)
            counted(learning.recorder.live.graph, noted)
            learning.learn(WARM, WARM + WINDOW, ahead=iter)
            noted.start()
            logits = learning.learn(WARM + WINDOW, WARM + WINDOW + EDGES, ahead=iter, on_chunk=noted.chunk)
            # Memory's last move, after the last chunk that is learned.
            noted.chunk()
            did = noted.seconds, noted.bytes, noted.sampled, noted.sent
            return *did, mrr_of(ranks, logits)
        finally:
            turns.end()

    told = threads.run(size, one, seconds=1200)
    seconds, bytes_, sampled, sent, mrr = zip(*told, strict=True)
    return Work(np.array(seconds), np.array([list(b) for b in bytes_], float), np.array(sent, float)), list(sampled), mrr[0]


def ping() -> None:
    """One of two ranks: measure the latency and the bandwidth of a round, and print them as JSON."""
    import json

    import torch

    ranks = Ranks.join(60)
    group, seconds = ranks.learning, {}
    for count, rounds in ((1, 300), (1_000_000, 15)):
        rows, each = torch.zeros(2 * count, dtype=torch.int64), []
        for _ in range(rounds):
            begun = time.perf_counter()
            group.all_to_all(rows, [count] * 2, [count] * 2)
            each.append(time.perf_counter() - begun)
        seconds[count] = statistics.median(each)
    latency = seconds[1]
    print("TOLD", json.dumps({"latency": latency, "bandwidth": 8e6 / (seconds[1_000_000] - latency)}), flush=True)


def run() -> list[Row]:
    told = started(2, "ping", module="tests.benchmarks.ranks_model")
    loopback = Link("loopback", max(t["latency"] for t in told), min(t["bandwidth"] for t in told))
    links = (loopback, *beyond_loopback(loopback))
    rows = []
    for link in links:
        rows.append(Row(f"{link.name}: latency of a round", link.latency * 1e6, "us"))
        rows.append(Row(f"{link.name}: bandwidth", link.bandwidth / 1e9, "GB/s"))
    with log_of("gdelt") as folder:
        for chunk in (600, 4000):
            rows += of_chunks(folder, "gdelt", "tgn", chunk, links)
    return rows


def of_chunks(folder: str, preset: str, name: str, chunk: int, links: tuple[Link, ...]) -> list[Row]:
    """links: loopback first."""
    label = f"{preset}, {name}, chunks of {chunk}"
    alone, _, mrr = work_of(folder, name, chunk, 1)
    one = alone.over(links[0])
    rows = []
    for size in (2, *SIZES):
        work, sampled, same = work_of(folder, name, chunk, size)
        if size == 2:
            times = [started(2, folder, name, str(chunk), str(EDGES)) for _ in range(ROUNDS)]
            wall = statistics.median(max(t["seconds"] for t in two) for two in times)
            busy = statistics.median(max(t["cpu"] for t in two) for two in times)
            rows.append(Row(f"{label}: two ranks, modelled", work.over(links[0]), "s", wall, "measured"))
            rows.append(Row(f"{label}: the fuller rank's compute, modelled", work.seconds_RC.sum(1).max(), "s", busy, "measured CPU time"))
        rows += of_size(f"{label}: {size} ranks, modelled", work, sampled, one, links)
        rows.append(Row(f"{label}: {size} ranks, modelled: MRR", 1000 * same, "thousandths", 1000 * mrr, "one rank"))
        if size == 2 and abs(work.over(links[0]) - wall) > NEAR * wall:
            break
    return rows


def counts(preset: str, name: str) -> list[Row]:
    """What does not depend on how busy the machine is: edges and bytes of ranks, and what chunks of 600 a rank cost in MRR."""
    rows = []
    with log_of(preset) as folder:
        for chunk, size in ((600, 2), (1200, 2), (4000, 2), (600, 4)):
            work, sampled, mrr = work_of(folder, name, chunk, size)
            label = f"{preset}, {name}, chunks of {chunk}, {size} ranks"
            rows.append(Row(f"{label}: sent per trained event", work.sent_R.sum() / EDGES / 1e3, "kB"))
            for what, values in (("sampled edges", sampled), ("bytes sent", work.sent_R)):
                rows.append(Row(f"{label}: {what}, variation over ranks", 100 * spread(values), "%"))
            rows.append(Row(f"{label}: MRR", 1000 * mrr, "thousandths"))
            print(*rows[-4:], sep="\n", flush=True)
    return rows


def of_size(label: str, work: Work, sampled: list[int], one: float, links: tuple[Link, ...]) -> list[Row]:
    size = len(sampled)
    rows = [Row(f"{label}: share of linear, {link.name}", 100 * one / (size * work.over(link)), "%") for link in links]
    rows.append(Row(f"{label}: slowest rank's compute over the mean, of a chunk", work.unevenness, "times"))
    for what, values in (("compute", work.seconds_RC.sum(1)), ("sampled edges", sampled), ("bytes sent", work.sent_R)):
        rows.append(Row(f"{label}: {what}, variation over ranks", 100 * spread(values), "%"))
    return rows


PARTS = {"ranks-model": run, **{f"ranks-counts-{preset}-{name}": partial(counts, preset, name) for preset in FEATURES for name in ("tgn", "tgat")}}


if __name__ == "__main__":
    if sys.argv[1] != "ping":
        raise SystemExit("usage: python -m tests.benchmarks.ranks_model ping")
    ping()

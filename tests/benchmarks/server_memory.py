"""What a serve process takes of memory: by what it imports, by what it is ready with, and as one of several workers.

RSS counts every page that a process has mapped in. PSS counts a page that several processes have mapped (the code of a library, the file
of a segment) in shares, so what else runs with the same libraries lowers it. Own pages (anonymous memory) no other process has: a further
worker takes so much more of the machine, whatever runs. The log is the demo's month; the version is a TGN of drawn weights, whose memory
follows to the end.
"""

import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from streamd.demo.broker import free_port
from streamd.eventlog.reader import LogReader
from streamd.graph.facts.columns import FACT_NAMES
from streamd.models import build_model
from streamd.models.memory.files import MemoryFiles
from streamd.registry import Registry
from streamd.registry.candidate import Candidate, TrainResult
from streamd.settings.loading import Settings, load_settings
from streamd.telemetry.heartbeat import read_beat
from streamd.windows import Window
from tests.benchmarks.children import Children
from tests.benchmarks.measure import Row, pick_size, wikipedia_log

MIB = 2**20
IMPORTS = ("numpy", "msgspec", "crc32c", "safetensors.numpy", "structlog", "typer", "pydantic_settings", "prometheus_client", "numba",
           "fastapi", "uvicorn", "uvloop", "streamd.server.app")
"""In the order in which they are imported here; what comes later shares what came before."""
PROMISE = 200.0
"""MiB of RSS of a worker that answers by a TGN on a CPU."""
REQUESTS = pick_size(300, 10)
PRINT_EACH = """
import importlib, json, sys
def now():
    lines = (line.split() for line in open("/proc/self/smaps_rollup"))
    return {words[0]: int(words[1]) for words in lines if words[0] in ("Rss:", "Anonymous:")}
out = [("python", now())]
for name in sys.argv[1:]:
    importlib.import_module(name)
    out.append((name, now()))
print(json.dumps(out))
"""


def run() -> list[Row]:
    rows = list(imported())
    with tempfile.TemporaryDirectory() as folder:
        s = settings_of(Path(folder))
        wikipedia_log(s.data_dir)
        publish(s)
        rows += one_server(s)
        rows += two_servers(s)
    return rows


def imported() -> Iterator[Row]:
    """What each import adds, and torch beside what is there."""
    for more, what in ((), "imported"), (("torch",), "imported, torch too"):
        told = json.loads(subprocess.run([sys.executable, "-c", PRINT_EACH, *IMPORTS, *more], check=True, stdout=subprocess.PIPE).stdout)
        if not more:
            before = {"Rss:": 0, "Anonymous:": 0}
            for name, now in told:
                yield Row(f"{name}: RSS", (now["Rss:"] - before["Rss:"]) / 1024, "MiB", (now["Anonymous:"] - before["Anonymous:"]) / 1024, "own")
                before = now
        yield Row(f"all of a server that is {what}: RSS", told[-1][1]["Rss:"] / 1024, "MiB", told[-1][1]["Anonymous:"] / 1024, "own")


def settings_of(folder: Path) -> Settings:
    return load_settings(None, {"data_dir": folder / "data", "server.port": free_port(), "stream.time_unit": "s",
                                "server.device": "cpu", "model.name": "tgn"}, {})[0]


def publish(s: Settings, at_end: bool = False) -> None:
    """A TGN of drawn weights, whose memory the server has to carry from the log's begin, or which is at its end and knows nothing."""
    log = LogReader.open(s.data_dir)
    assert log is not None
    model = build_model(s.model, log.state.schema, 0)
    memory, time_us = model.new_memory(), int(log.time_of(np.array([0]))[0])
    if at_end:
        memory.edge, memory.now_us = log.num_edges, log.watermark
    window = Window(time_us, time_us + 3600 * 10**6, 0, memory.edge)
    scores = {"live": {"mrr": 0.5, "mrr_known": 0.5, "ap": 0.25}}
    Registry.of(s).publish(Candidate(
        window=window, edge=memory.edge, seq=1, weights=model.arrays(),
        memory=lambda: MemoryFiles(s.data_dir / "made").store(memory), memory_us=0, parent="", scores=scores, facts=FACT_NAMES,
        model=s.model, training=s.training, window_seconds=s.windows.width_seconds, schema=log.state.schema,
        learned=TrainResult(loss=0.5, finite=True, tail_before=0.25, tail_after=0.5, num_tail=50)))


def one_server(s: Settings) -> list[Row]:
    """A server on its own: as it listens, once it is ready, after requests of all kinds."""
    with servers(s, "serve") as (server,):
        rows = [row("a server as it begins to listen", server)]
        begun = time.monotonic()
        until_ready(s)
        rows += [Row("from listening to ready, the month's log and its memory replayed", time.monotonic() - begun, "s"),
                 row("the same server, ready", server)]
        ask(s)
        rows.append(row(f"the same after {REQUESTS} requests of 100 candidates, recommendations too", server, PROMISE))
        return rows


def two_servers(s: Settings) -> list[Row]:
    """Two on one directory, as `server.workers: 2` starts them: what of it they share."""
    several = s.model_copy(update={"server": s.server.model_copy(update={"workers": 2}),
                                   "telemetry": s.telemetry.model_copy(update={"serve_port": 0})})
    with servers(several, "serve", "serve-worker-1") as both:
        while not all((beat := read_beat(s.data_dir, name)) is not None and beat.state == "ready" for name in ("serve", "serve-worker-1")):
            time.sleep(0.05)
        until_ready(several)
        ask(several)
        return [row(f"one of two workers after requests ({name})", server, PROMISE) for name, server in zip("ab", both, strict=True)]


@contextmanager
def servers(s: Settings, *names: str) -> Iterator[list[subprocess.Popen]]:
    with Children() as roles:
        started = [roles.role(s, "serve", name) for name in names]
        wait(s, "/livez")
        yield started


def row(what: str, server: subprocess.Popen, promise: float | None = None) -> Row:
    rss, pss, own = memory_of(server.pid)
    return Row(f"{what}: RSS (PSS {pss / MIB:,.0f}, own {own / MIB:,.0f})", rss / MIB, "MiB", promise, "promise")


def memory_of(pid: int) -> tuple[int, int, int]:
    """RSS, PSS and anonymous memory of a process, bytes."""
    told = {words[0]: int(words[1]) * 1024 for words in map(str.split, Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])}
    return told["Rss:"], told["Pss:"], told["Anonymous:"]


def wait(s: Settings, path: str) -> dict:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            link = http.client.HTTPConnection("127.0.0.1", s.server.port, timeout=5)
            link.request("GET", path)
            answer = link.getresponse()
            content = answer.read()
            if answer.status == 200:
                return json.loads(content)
        except OSError:
            pass
        time.sleep(0.05)
    raise TimeoutError(path)


def until_ready(s: Settings) -> None:
    version = Registry.of(s).champion()
    while wait(s, "/readyz") and (wait(s, "/status.json")["version"] != version):
        time.sleep(0.05)


def ask(s: Settings) -> None:
    """Requests over connections of their own, so that the kernel spreads them over workers."""
    rng = np.random.default_rng(0)
    for i in range(REQUESTS):
        src, pages = f"user:{rng.integers(8227)}", [f"page:{p}" for p in rng.integers(8227, 9227, 100)]
        path, body = ("/v1/recommend", {"src": src}) if i % 10 == 9 else ("/v1/score", {"src": src, "dst": pages})
        link = http.client.HTTPConnection("127.0.0.1", s.server.port, timeout=30)
        link.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = link.getresponse()
        assert answer.status == 200, answer.read()
        link.close()

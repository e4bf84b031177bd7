"""`streamd demo`: broker, daemon, producer, progress, and with --exit the table; everything it
starts it also ends."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streamd.demo.broker import Broker, find_broker, free_port
from streamd.demo.player import Player
from streamd.demo.streams import DemoStream, stream_named
from streamd.demo.table import render, rows
from streamd.demo.twins import Twins
from streamd.errors import DemoError
from streamd.graph.jit import compile_notice
from streamd.processes import PYTHON, end_with_parent
from streamd.registry.journal import ModelJournal
from streamd.segments.layout import LATE
from streamd.settings import Settings, as_environment, load_settings
from streamd.telemetry.heartbeat import read_beat
from streamd.telemetry.progress import LINE_SECONDS, Meter, ProgressLine
from streamd.windows.history import HistoryReader

TOPIC = "demo"
PARTITIONS = 4
IDLE_TIMEOUT_SECONDS = 5.0
MERGE_WAIT_SECONDS = 0.25
"""The partitions of an hour's events appear one after the other, on a busy machine far apart."""
SETTLE_SECONDS = 600.0
POLL_SECONDS = 0.2
COMPARISONS = "models to compare with (nightly, nightly weights with live state, frozen)"


def play(
    name: str,
    speed: str,
    end: bool,
    days: int | None,
    bootstrap_servers: str | None,
    port: int,
    data_dir: Path | None,
) -> int:
    """Run the demo. Returns: 0 only if every event was consumed, committed and is visible, and none
    was clamped."""
    stream = stream_named(name)
    rate = _rate(speed)
    console = Console(soft_wrap=not Console().is_terminal)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        if data_dir is None:
            data_dir = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="streamd-demo-"))
            )
        elif (data_dir / "journal").exists():
            raise DemoError(
                f"{data_dir} holds a log already.", "name a new folder with --data-dir."
            )
        data_dir.mkdir(parents=True, exist_ok=True)
        broker = find_broker(bootstrap_servers, data_dir / "kafka")
        stack.callback(broker.close)
        console.print(
            f"[bold]streamd demo[/bold]: {stream.title}\nBroker: {broker.note}", highlight=False
        )
        console.print(stream.remark)
        topic = f"{TOPIC}-{stream.name}-{os.getpid()}"
        broker.create_topic(topic, PARTITIONS)
        settings = _settings(stream, broker, topic, data_dir, _usable(port, console))
        if notice := compile_notice():
            console.print(notice)
        daemon = stack.enter_context(_daemon(settings, data_dir))
        try:
            return _run(stream, settings, rate, end, days, daemon, console)
        except KeyboardInterrupt:
            console.print("stopped")
            return 130
        except DemoError:
            tail = (data_dir / "daemon.log").read_text(errors="replace")[-3000:]
            console.print(f"The end of daemon.log:\n{tail}", markup=False, highlight=False)
            raise


def _rate(speed: str) -> float:
    if speed == "max":
        return 0.0
    try:
        rate = float(speed)
    except ValueError:
        rate = -1.0
    if rate <= 0:
        raise DemoError(f"--speed is {speed!r}; use event-time hours per second above 0, or max.")
    return rate


def _usable(port: int, console: Console) -> int:
    if port:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                console.print(f"Port {port} is taken, using a free one.")
    return free_port()


def _settings(
    stream: DemoStream, broker: Broker, topic: str, data_dir: Path, port: int
) -> Settings:
    return load_settings(
        None,
        {
            "data_dir": data_dir,
            "kafka.bootstrap_servers": broker.bootstrap_servers,
            "kafka.topics": (topic,),
            "kafka.client": broker.client,
            "stream.time_unit": "s",
            "stream.edge_feature_dim": len(stream.edge_features),
            "stream.node_feature_dim": stream.node_feature_dim,
            "ingest.idle_timeout_seconds": IDLE_TIMEOUT_SECONDS,
            "bootstrap.max_events": 0,
            "windows.merge_after": 0,
            "ingest.merge_wait_seconds": MERGE_WAIT_SECONDS,
            "server.port": port,
            "telemetry.ingest_port": 0,
            "telemetry.train_port": 0,
        },
        environ={},
    )[0]


@contextlib.contextmanager
def _daemon(settings: Settings, data_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`streamd run` as a child, its output in daemon.log."""
    environ = {
        k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")
    } | as_environment(settings)
    with (data_dir / "daemon.log").open("wb") as output:
        child = subprocess.Popen(
            [*PYTHON, "-m", "streamd", "run"],
            env=environ,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        try:
            yield child
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(40)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


class _Watch:
    """Reads what the roles leave in the data directory; used by the display and the end check."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.history = HistoryReader(settings.data_dir)
        self.address = f"http://127.0.0.1:{settings.server.port}"

    def windows_done(self) -> int:
        return len(self.history.refresh())

    def detail(self, role: str) -> dict[str, Any]:
        beat = read_beat(self._settings.data_dir, role)
        return beat.detail if beat else {}

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.address + path, data, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)


def _run(
    stream: DemoStream,
    settings: Settings,
    rate: float,
    end: bool,
    days: int | None,
    daemon: subprocess.Popen[bytes],
    console: Console,
) -> int:
    watch = _Watch(settings)
    counter = HistoryReader(settings.data_dir)
    player = Player(stream, settings, rate, days, lambda: len(counter.refresh()))
    twins: Twins | None = None
    begun = time.monotonic()
    player.start()
    console.print(
        f"Status page {watch.address}/   API docs {watch.address}/docs   log {settings.data_dir}/daemon.log"
    )
    try:
        with _display(console) as show:
            while not player.status.done.wait(POLL_SECONDS) or not _all_learned(watch, player):
                show(watch, player, begun)
                _check_running(daemon, player, twins, settings)
                if end and twins is None and player.status.total:
                    twins = Twins(settings, player.status.total)
                    twins.start()
                if (
                    player.status.done.is_set()
                    and time.monotonic() - player.status.finished > SETTLE_SECONDS
                ):
                    raise DemoError(
                        f"{SETTLE_SECONDS:.0f} s after the last event not every window is learned.",
                        f"read {settings.data_dir}/daemon.log.",
                    )
            learned = time.monotonic()
            show(watch, player, begun)
            if not end:
                console.print("The stream is over; the daemon goes on answering. Ctrl-C ends it.")
                daemon.wait()
                return 1
        assert twins is not None
        _await_twins(
            twins,
            watch.windows_done(),
            player.status.total,
            console,
            lambda: _check_running(daemon, player, twins, settings),
        )
        return _finish(stream, settings, watch, player, twins, learned - begun, console)
    finally:
        player.stop()
        if twins is not None:
            twins.stop()


def _await_twins(
    twins: Twins, num_windows: int, num_events: int, console: Console, check: Callable[[], None]
) -> None:
    """Wait until all windows are scored by the twins too. check: raises where that cannot come."""
    with ProgressLine(console, "") as line:
        line.begin(COMPARISONS, done=twins.edge)
        while len(twins.windows) < num_windows:
            line.at(twins.edge, num_events)
            check()
            time.sleep(POLL_SECONDS)
        line.at(twins.edge, num_events)


def _all_learned(watch: _Watch, player: Player) -> bool:
    records = watch.history.refresh()
    return player.status.error is not None or bool(
        records and records[-1].end_edge >= player.status.total
    )


def _check_running(
    daemon: subprocess.Popen[bytes], player: Player, twins: Twins | None, settings: Settings
) -> None:
    if daemon.poll() is not None:
        raise DemoError(
            f"The daemon ended with status {daemon.returncode}.", "see the end of its log above."
        )
    for part in (player.status.error, twins.error if twins else None):
        if part is not None:
            raise DemoError(f"The demo failed: {type(part).__name__}: {part}") from part


@contextlib.contextmanager
def _display(console: Console) -> Iterator[Any]:
    """A live table on a terminal, a line every LINE_SECONDS elsewhere."""
    meter = Meter()
    if console.is_terminal:
        with Live(console=console, refresh_per_second=5) as live:
            yield lambda watch, player, begun: live.update(
                _table(_facts(watch, player, begun, meter))
            )
        return
    last = [0.0]

    def line(watch: _Watch, player: Player, begun: float) -> None:
        if time.monotonic() - last[0] >= LINE_SECONDS:
            last[0] = time.monotonic()
            facts = _facts(watch, player, begun, meter)
            console.print("  ".join(f"{k} {v}" for k, v in facts.items()), highlight=False)

    yield line


def _facts(watch: _Watch, player: Player, begun: float, meter: Meter) -> dict[str, str]:
    ingest = watch.detail("ingest")
    train = watch.detail("train")
    records = watch.history.refresh()
    scored = [r for r in records[-24:] if r.num_scored]
    weight = sum(r.num_scored for r in scored)
    score = (
        f"{sum(r.scores['live']['mrr'] * r.num_scored for r in scored) / weight:.3f}"
        if weight
        else "-"
    )
    elapsed = time.monotonic() - begun
    learned = meter.at(records[-1].end_edge if records else 0, player.status.total or 1)
    return {
        "events": f"{ingest.get('edges', 0):,} of {player.status.total:,}",
        "lag": f"{ingest.get('lag', 0):,}",
        "not yet learned": f"{train.get('lag', 0):,}",
        "windows": f"{len(records):,}",
        "learned": learned.text("events"),
        "MRR of the last 24": score,
        "version": str(train.get("version", "-")),
        "seconds": f"{elapsed:.0f}",
    }


def _table(facts: dict[str, str]) -> Group:
    table = Table(box=None, show_header=False)
    for name, value in facts.items():
        table.add_row(name, Text(value, style="bold"))
    return Group(table)


def _finish(
    stream: DemoStream,
    settings: Settings,
    watch: _Watch,
    player: Player,
    twins: Twins,
    seconds: float,
    console: Console,
) -> int:
    records = watch.history.refresh()
    table_rows = rows(records, twins.windows, twins.cut, player.status.total)
    Console(width=max(console.width, 130)).print(
        render(table_rows, f"{stream.name}: prequential scores")
    )
    console.print(stream.remark)
    per_window = [sum(r.seconds.values()) for r in records]
    promoted = sum(
        1 for m in ModelJournal(settings.data_dir / "models").moves() if m.action == "promote"
    )
    console.print(
        f"{promoted:,} versions promoted, {len(records):,} windows, {player.status.sent / seconds:,.0f} events/s "
        f"through the whole daemon, {sum(per_window) / len(per_window):.3f} s a window to score and learn",
        highlight=False,
    )
    _example(watch, stream, console)
    return _check_end(settings, watch, player, console)


def _example(watch: _Watch, stream: DemoStream, console: Console) -> None:
    body = {"src": json.loads(next(stream.hours(1))[-1].value)["src"], "k": 3}
    answer = watch.ask("/v1/recommend", body)
    console.print(
        f"curl -s {watch.address}/v1/recommend -H 'content-type: application/json' -d '{json.dumps(body)}'",
        highlight=False,
        soft_wrap=True,
    )
    console.print_json(json.dumps(answer))


def _check_end(settings: Settings, watch: _Watch, player: Player, console: Console) -> int:
    """Every event consumed, committed, visible, and none clamped or refused: anything else is a
    failure, by name."""
    ingest = watch.detail("ingest")
    visible = watch.ask("/status.json")
    sent = player.status.sent
    late = (settings.data_dir / LATE).stat().st_size
    checks = {
        f"{sent:,} events sent of {player.status.total:,}": sent == player.status.total,
        f"{ingest['edges']:,} committed": ingest["edges"] == sent,
        f"{visible['edges']:,} visible to the server": visible["edges"] == sent,
        f"{ingest['clamped']} clamped": ingest["clamped"] == 0 and late == 0,
        f"{ingest['dead_letters']} dead letters": ingest["dead_letters"] == 0,
        f"{watch.history.records[-1].end_edge:,} in learned windows": watch.history.records[
            -1
        ].end_edge
        == sent,
    }
    for what, good in checks.items():
        console.print(
            f"{'[green]ok[/green] ' if good else '[red]FAILED[/red]'} {what}", highlight=False
        )
    return 0 if all(checks.values()) else 1

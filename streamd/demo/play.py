"""The command `streamd demo`: starts broker, daemon and producer, shows progress, and with --exit
prints the table of scores.

It ends every process that it starts.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from streamd.demo.broker import Broker, find_broker, free_port
from streamd.demo.player import Player
from streamd.demo.role_reader import RoleReader, display
from streamd.demo.streams import DAY, DemoStream, find_stream
from streamd.demo.trial_users import REMARK, SimulatedUsers, print_trial, trial_settings
from streamd.errors import DemoError
from streamd.evaluation.backtest import TITLES
from streamd.eventlog.layout import LATE
from streamd.number_texts import count_noun, span
from streamd.processes import PYTHON, end_with_parent
from streamd.registry.journal import ModelJournal
from streamd.server.page.window_rows import edge_sets
from streamd.settings.loading import Settings, as_environment, load_settings
from streamd.telemetry.progress import ProgressLine
from streamd.training.learning_settings import LearningSettings
from streamd.windows.history import HistoryReader

if TYPE_CHECKING:
    from streamd.demo.baselines import Baselines

TOPIC = "demo"
PARTITIONS = 4
IDLE_TIMEOUT_SECONDS = 5.0
"""Time without events before the last window is closed; shorter than the default, so that the demo
ends soon."""
MERGE_WAIT_SECONDS = 0.25
"""How long the merge waits for a partition: on a busy machine an hour's events reach the partitions
at times that differ by this much."""
SETTLE_SECONDS = 600.0
"""Longest wait for training on the last window after the last event: training may lag far by
then."""
POLL_SECONDS = 0.2
MOVED = "All days are moved so that the last one ends last midnight (UTC)."
COMPARISONS = "models to compare with (nightly, nightly weights with live state, frozen)"


def play(
    name: str,
    speed: str,
    end: bool,
    days: int | None,
    cold: bool,
    bootstrap_servers: str | None,
    port: int,
    data_dir: Path | None,
    trial: bool = False,
) -> int:
    """Run the demo. Returns: the exit status; with `end`, 0 only if every event was sent, committed
    and learned, is visible, and none was clamped or a dead letter. Raises: DemoError.

    Args: name: of the stream. speed: event-time hours per second, or "max". end: print the table
        after the last window and end, else run until Ctrl-C. days: None for all. cold: freeze the
        frozen model after COLD_EVENTS events. bootstrap_servers: None to start a broker. port: 0
        for a free one. data_dir: None for a temporary folder. trial: simulated users take part in
        a trial of the champion, the version of last midnight and the rule.
    """
    stream = find_stream(name)
    rate = _rate(speed)
    console = Console(soft_wrap=not Console().is_terminal)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        # Create the data directory, and start the broker.
        data_dir = _make_data_dir(data_dir, stack)
        broker = _start_broker(bootstrap_servers, stack)
        console.print(
            f"[bold]streamd demo[/bold]: {title_of(stream, days)}\nBroker: {broker.note}",
            highlight=False,
        )
        console.print(f"{stream.remark} {MOVED}")

        # Create the topics, and start the daemon.
        topic = f"{TOPIC}-{stream.name}-{os.getpid()}"
        of_trial = trial_settings(stream, f"{topic}-trials") if trial else {}
        for own in (*stream.topics(topic), *filter(None, [of_trial.get("trials.topic")])):
            broker.create_topic(own, PARTITIONS)
        used = _usable_port(port, console)
        note = page_note(stream, days, trial)
        settings = _settings(stream, broker, topic, data_dir, used, note, of_trial)
        daemon = stack.enter_context(_daemon(settings, data_dir))
        _print_kernel_notice(console)

        # Play the stream; print the end of the daemon's log after an error.
        try:
            return _run(stream, settings, rate, end, days, cold, daemon, console)
        except KeyboardInterrupt:
            console.print("stopped")
            return 130
        except DemoError:
            tail = (data_dir / "daemon.log").read_text(errors="replace")[-3000:]
            console.print(f"The end of daemon.log:\n{tail}", markup=False, highlight=False)
            raise


def _make_data_dir(data_dir: Path | None, stack: contextlib.ExitStack) -> Path:
    """Create the data directory, a temporary one by default, which ends with the stack. Raises:
    DemoError if it has a log."""
    if data_dir is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamd-demo-")))
    if (data_dir / "journal").exists():
        raise DemoError(
            f"{data_dir} already has an event log.", "name a new folder with --data-dir."
        )
    data_dir.mkdir(parents=True, exist_ok=True)
    return data_dir


def _start_broker(bootstrap_servers: str | None, stack: contextlib.ExitStack) -> Broker:
    """Find or start a broker, which ends with the stack."""
    # Not in the data directory: a search for erased keys reads all of it, and records in Kafka go
    # by their retention. The folder stays if no broker starts, since the error names a file in it.
    folder = Path(tempfile.mkdtemp(prefix="streamd-demo-kafka-"))
    broker = find_broker(bootstrap_servers, folder)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    stack.callback(broker.close)
    return broker


def title_of(stream: DemoStream, days: int | None) -> str:
    """The title of the part of a stream that is played. days: None for all."""
    if days is None:
        return stream.title
    return f"the first {'day' if days == 1 else count_noun(days, 'day')} of {stream.title}"


def page_note(stream: DemoStream, days: int | None, with_trial: bool) -> str:
    """The note below the page's title. days: None for all."""
    return f"Demo: {title_of(stream, days)} {MOVED}{f' {REMARK}' if with_trial else ''}"


def _print_kernel_notice(console: Console) -> None:
    """Print the duration of compiling kernels, if the daemon has to. The import takes a second,
    while the daemon starts."""
    from streamd.graph.jit import compile_notice

    if notice := compile_notice():
        console.print(notice)


def _rate(speed: str) -> float:
    """Event-time hours per second, 0 for "max". Raises: DemoError."""
    if speed == "max":
        return 0.0
    try:
        rate = float(speed)
    except ValueError:
        rate = -1.0
    if rate <= 0:
        raise DemoError(
            f"--speed is {speed!r}.", "give event-time hours per second above 0, or max."
        )
    return rate


def _usable_port(port: int, console: Console) -> int:
    """The port, or a free one if it is 0 or taken."""
    if port:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                console.print(f"Port {port} is in use; using a free one.")
    return free_port()


def _settings(
    stream: DemoStream,
    broker: Broker,
    topic: str,
    data_dir: Path,
    port: int,
    note: str,
    more: dict[str, Any],
) -> Settings:
    """The settings of the demo's daemon; the user's own are not read. note: for the page. more:
    further settings, by dotted key."""
    return load_settings(
        None,
        {
            "data_dir": data_dir,
            "kafka.bootstrap_servers": broker.bootstrap_servers,
            "kafka.topics": stream.topics(topic),
            "kafka.client": broker.client,
            **stream.settings(topic),
            "ingest.idle_timeout_seconds": IDLE_TIMEOUT_SECONDS,
            "bootstrap.max_events": 0,
            "windows.merge_after": 0,
            "ingest.merge_wait_seconds": MERGE_WAIT_SECONDS,
            "server.port": port,
            "server.page_note": note,
            "telemetry.ingest_port": 0,
            "telemetry.train_port": 0,
            **more,
        },
        environ={},
    )[0]


@contextlib.contextmanager
def _daemon(settings: Settings, data_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `streamd run` as a child process with its output in daemon.log, and end it afterwards."""
    # Pass only the demo's settings, and no STREAMD_ variable of the user's environment.
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
            # Stop it, and give it time for its last commit.
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(40)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _run(
    stream: DemoStream,
    settings: Settings,
    rate: float,
    end: bool,
    days: int | None,
    cold: bool,
    daemon: subprocess.Popen[bytes],
    console: Console,
) -> int:
    """Play the stream with progress, then end as `play` does. Returns: the exit status."""
    # Two readers of the windows' history, since the player has its own thread.
    watch = RoleReader(settings.data_dir, settings.server.port)
    users = SimulatedUsers(stream, watch) if settings.trials.name else None
    player = _player(stream, settings, rate, days, users)
    baselines: Baselines | None = None
    begun = time.monotonic()
    player.start()
    console.print(
        f"Status page {watch.address}/   API docs {watch.address}/docs   "
        f"log {settings.data_dir}/daemon.log"
    )
    try:
        # Show progress until every event is in a learned window. The comparisons run meanwhile.
        with display(console) as show:
            while not player.status.done.wait(POLL_SECONDS) or not _has_caught_up(watch, player):
                show(watch, player, begun)
                _check_running(daemon, player, baselines)
                # Start the comparisons after the first window: before, the daemon needs the cores.
                if end and baselines is None and watch.num_windows():
                    baselines = _start_baselines(settings, player.status.total, cold)
                _check_settles(player, settings.data_dir)
            learned = time.monotonic()
            show(watch, player, begun)
        if not end:
            return _run_on(daemon, console)

        # Wait for the comparisons, print the table, and check the end state.
        _check_running(daemon, player, baselines)
        baselines = baselines or _start_baselines(settings, player.status.total, cold)
        check = partial(_check_running, daemon, player, baselines)
        await_baselines(baselines, watch.num_windows(), player.status.total, console, check)
        if users is not None:
            print_trial(users, settings.data_dir, watch, player.status.total, console)
        return _finish(
            stream, settings.data_dir, watch, player, baselines, learned - begun, console
        )
    finally:
        player.stop()
        if baselines is not None:
            baselines.stop()


def _player(
    stream: DemoStream,
    settings: Settings,
    rate: float,
    days: int | None,
    users: SimulatedUsers | None,
) -> Player:
    """The player, with a reader of the windows' history for its own thread."""
    counter = HistoryReader(settings.data_dir)
    # The month is moved to end last midnight: the page shows recent dates, and none in the future.
    midnight = int(time.time()) // DAY * DAY
    return Player(
        stream,
        settings.data_dir,
        settings.kafka,
        rate,
        days,
        lambda: len(counter.refresh()),
        midnight,
        users.ask if users else None,
    )


def _run_on(daemon: subprocess.Popen[bytes], console: Console) -> int:
    """Wait until the daemon ends by itself, or Ctrl-C. Returns: the exit status."""
    console.print("All events are learned. The daemon keeps running; Ctrl-C ends it.")
    with contextlib.suppress(KeyboardInterrupt):
        daemon.wait()
        return 1
    console.print("stopped")
    return 0


def _start_baselines(settings: Settings, num_events: int, cold: bool) -> "Baselines":
    """Start the comparisons. Imported here, since their imports take seconds."""
    from streamd.demo.baselines import Baselines
    from streamd.gpu import choose_device

    learning = LearningSettings.of(settings, choose_device(settings.device))
    baselines = Baselines(settings.data_dir, learning, num_events, cold)
    baselines.start()
    return baselines


def await_baselines(
    baselines: "Baselines",
    num_windows: int,
    num_events: int,
    console: Console,
    check: Callable[[], None],
) -> None:
    """Wait until the compared models have scored all windows. check: raises DemoError if this has
    become impossible."""
    if len(baselines.windows) >= num_windows:
        return
    with ProgressLine(console, "") as line:
        line.begin(COMPARISONS, done=baselines.edge)
        while len(baselines.windows) < num_windows:
            line.at(baselines.edge, num_events)
            check()
            time.sleep(POLL_SECONDS)
        line.at(baselines.edge, num_events)


def _has_caught_up(watch: RoleReader, player: Player) -> bool:
    """Whether the last event is in a learned window, or the player has failed."""
    records = watch.history.refresh()
    return player.status.error is not None or bool(
        records and records[-1].end_edge >= player.status.total
    )


def _check_settles(player: Player, data_dir: Path) -> None:
    """Check that the last window is learned within SETTLE_SECONDS of the last event. Raises:
    DemoError."""
    finished = player.status.done.is_set()
    if finished and time.monotonic() - player.status.finished > SETTLE_SECONDS:
        raise DemoError(
            f"Not all windows are learned {span(SETTLE_SECONDS)} after the last event.",
            f"read {data_dir}/daemon.log.",
        )


def _check_running(
    daemon: subprocess.Popen[bytes], player: Player, baselines: "Baselines | None"
) -> None:
    """Check that the daemon runs, and that player and comparisons have not failed. Raises:
    DemoError."""
    if daemon.poll() is not None:
        raise DemoError(
            f"The daemon ended with status {daemon.returncode}.", "see the end of its log above."
        )
    for part in (player.status.error, baselines.error if baselines else None):
        if part is not None:
            raise DemoError(f"The demo failed: {type(part).__name__}: {part}") from part


def _finish(
    stream: DemoStream,
    data_dir: Path,
    watch: RoleReader,
    player: Player,
    baselines: "Baselines",
    seconds: float,
    console: Console,
) -> int:
    """Print the table, the speed and an example, and check the end state. Returns: the exit
    status."""
    from streamd.demo.days_table import WIDE, render, rows

    # Scores of the live model and of the compared models.
    records = watch.history.refresh()
    table_rows = rows(records, baselines.windows, baselines.cut, player.status.total)
    width = console.width if console.is_terminal else max(console.width, WIDE)
    for table in render(table_rows, f"{stream.name}: prequential scores", width):
        Console(width=width).print(table)
    console.print(stream.remark)
    for one in edge_sets(records):
        console.print(
            f"{one['name']}: {count_noun(one['scored'], 'event')}, MRR {one['mrr']:.3f}, "
            "the best rule's "
            f"({TITLES[one['rule_name']]}) {one['rule']:.3f}",
            highlight=False,
        )

    # The daemon's work in this time.
    per_window = [sum(r.seconds.values()) for r in records]
    journal = ModelJournal(data_dir / "models", log=data_dir)
    promoted = sum(1 for m in journal.moves() if m.action == "promote")
    console.print(
        f"{count_noun(promoted, 'version')} promoted, {count_noun(len(records), 'window')}, "
        f"{player.status.sent / seconds:,.0f} events/s through the whole daemon, "
        f"{sum(per_window) / len(per_window):.3f} s a window to score and learn",
        highlight=False,
    )
    _example(watch, stream, console)
    return _check_end(data_dir, watch, player, console)


def _example(watch: RoleReader, stream: DemoStream, console: Console) -> None:
    """Print a request that the user can repeat, and its response."""
    # The source of the first window's last event, on which the model was trained.
    event = json.loads(next(stream.windows(1))[-1].value)
    body = {"src": event["src"], "k": 3}
    if stream.edge_sets:
        body["edge_set"] = event["edge_set"]
    answer = watch.ask("/v1/recommend", body)
    console.print("A request, and the answer of the server, which ends now:", highlight=False)
    console.print(
        f"curl -s {watch.address}/v1/recommend -H 'content-type: application/json' "
        f"-d '{json.dumps(body)}'",
        highlight=False,
        soft_wrap=True,
    )
    console.print_json(json.dumps(answer))


def _check_end(data_dir: Path, watch: RoleReader, player: Player, console: Console) -> int:
    """Check that every event was sent, committed, is visible and learned, and none was clamped or
    became a dead letter.

    Returns: 0, or 1 if a check failed. Each check is printed.
    """
    ingest = watch.detail("ingest")
    visible = watch.ask("/status.json")
    sent = player.status.sent
    # The file of late events is empty if no event was clamped.
    late = (data_dir / LATE).stat().st_size
    checks = {
        f"{count_noun(sent, 'event')} sent of {player.status.total:,}": sent == player.status.total,
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

"""The role serve as one process: a server that drains before it ends."""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from functools import partial

import structlog
import uvicorn

from streamd.daemon.erasures import run_erasures
from streamd.daemon.kernels_ready import make_kernels_ready
from streamd.daemon.role_lock import lock_name
from streamd.gpu import choose_device
from streamd.processes import gone_supervisor
from streamd.registry import Registry
from streamd.roles import server_names
from streamd.server.listening import listen, web_config
from streamd.server.moves import Moves
from streamd.server.state import ServerState
from streamd.settings.loading import Settings
from streamd.telemetry import metrics
from streamd.telemetry.api_keys import ApiKeys
from streamd.telemetry.heartbeat import Heartbeat, read_beat
from streamd.telemetry.port import open_port

logger = structlog.get_logger()


def run_serve(
    settings: Settings, name: str, stop: threading.Event, at_once: threading.Event
) -> None:
    """Run the server until `stop`, then drain it for `server.drain_seconds` or until `at_once`.

    1. Bind the port before anything is loaded: an occupied port is an error of the settings.
    2. Lock the server's name, so that two servers never write the same files.
    3. Make the server's parts, and serve in this thread; another thread drains and ends it.

    Raises: SettingsError if the port is occupied; LockedError if a server of that name runs.
    """
    # torch is not imported here: a version that needs it imports it.
    device = choose_device(settings.server.device)
    metrics.gpu_in_use.set(device == "cuda")
    metrics.score_slo.set(settings.telemetry.score_slo_seconds)
    registry = Registry.of(settings)
    failed = threading.Event()

    def end_process() -> None:
        failed.set()
        at_once.set()
        os.kill(os.getpid(), signal.SIGTERM)

    # 1. Bind the port.
    workers = server_names(settings.server.workers)
    is_shared = len(workers) > 1 and name in workers
    listening = listen(settings.server.host, settings.server.port, is_shared)

    # 2. Lock the name.
    lock = lock_name(settings.data_dir, name, stop)
    if lock is None:
        return

    # 3. Make the parts, and serve.
    beat = Heartbeat(settings.data_dir, "serve", name)
    moves = _moves_of(settings, registry)
    prepare = partial(make_kernels_ready, device, stop.is_set)
    state = ServerState(settings, registry, beat, moves, end_process, prepare)
    if is_shared:
        _share_port(settings, state, beat, workers)

    server = _Server(state)
    drain = partial(_end_after_drain, server, settings.server.drain_seconds, stop, at_once)
    threading.Thread(target=drain, daemon=True).start()
    erasing = threading.Thread(target=run_erasures, args=(settings, stop), name="erasing")
    erasing.start()
    scheme = "https" if settings.server.tls_cert_file else "http"
    logger.info(
        "server_listening", address=f"{scheme}://{settings.server.host}:{settings.server.port}"
    )
    try:
        server.run(sockets=[listening])
    finally:
        stop.set()
        erasing.join()
    if failed.is_set():
        sys.exit(1)


def _moves_of(settings: Settings, registry: Registry) -> Moves:
    """The executor of promotions and rollbacks: the registry, or on a follower requests to the
    trainer of the leader."""
    if not settings.log.follows:
        return registry
    from streamd.replica.move_requests import moves_by_request

    return moves_by_request(settings, registry, settings.server.deadline_seconds)


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, which would end it without a drain."""

    def __init__(self, state: ServerState) -> None:
        super().__init__(web_config(state))
        self.state = state

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Requests that wait for a commit get a reason now; uvicorn would answer them with 500.
        self.state.engine.end_waits()
        await super().shutdown(sockets)


def _share_port(
    settings: Settings, state: ServerState, beat: Heartbeat, workers: tuple[str, ...]
) -> None:
    """Let one of several workers on a port listen once it can answer, and open its own metrics
    port. workers: the names of all."""
    name = beat.name

    # The kernel spreads connections over all listening workers, so a worker that starts does not
    # listen until it can answer. If none can, the first one listens and responds with the reason.
    def may_listen() -> bool:
        if state.engine.status.ready:
            return True
        others = (read_beat(settings.data_dir, other) for other in workers if other != name)
        return name == workers[0] and not any(
            other is not None and other.alive and other.state == "ready" for other in others
        )

    state.may_listen = may_listen
    if settings.telemetry.serve_port:
        open_port(
            settings.telemetry.serve_port + workers.index(name),
            settings.server.host,
            beat,
            ApiKeys(settings.server).allows,
            state.refresh_metrics,
        )


def _end_after_drain(
    server: _Server, seconds: float, stop: threading.Event, at_once: threading.Event
) -> None:
    """Wait for `stop`, drain, and end the server. seconds: of the drain, which `at_once` shortens.
    A server that is not ready yet has nothing to drain."""
    stop.wait()
    # The server first reports that it is not ready, so that a balancer sends requests elsewhere.
    server.state.draining = True
    gone = gone_supervisor()
    why = "a signal" if gone is None else f"the process that started it (pid {gone}) has ended"
    logger.info("draining", seconds=seconds, why=why)
    at_once.wait(seconds if server.state.engine.status.ready else 0)
    server.should_exit = True

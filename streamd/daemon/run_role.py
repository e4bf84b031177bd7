"""Runs a role in this process: sets the process up, assembles the role's parts, and turns the error
that ends it into an exit status.

`log_roles` and `serve_role` assemble the parts of ingest, follow, archive and serve.
"""

import contextlib
import errno
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import structlog

from streamd.clock import SystemClock
from streamd.daemon.kernels_ready import make_kernels_ready
from streamd.daemon.log_roles import run_archive, run_follow, run_ingest
from streamd.daemon.reload import reload_at_hangup
from streamd.daemon.role_lock import lock_name, wait_for_lock
from streamd.daemon.supervisor import REFUSED, ROLE_REFUSED, make_data_dir
from streamd.errors import (
    DataLossError,
    DeviceMemoryError,
    DiskError,
    FencedError,
    KafkaError,
    LockedError,
    RanksError,
    SettingsError,
    StreamdError,
)
from streamd.processes import (
    SUPERVISED_BY,
    TorchrunRank,
    end_with_parent,
    end_with_supervisor,
    ended_by_signals,
    gone_supervisor,
    keep_freed_memory,
    raise_file_limit,
    torchrun_rank,
)
from streamd.roles import (
    ARCHIVE,
    FOLLOW,
    SCORE,
    TRIAL,
    rank_names,
)
from streamd.settings.loading import Settings
from streamd.settings.paths import Paths
from streamd.telemetry import metrics
from streamd.telemetry.api_keys import ApiKeys
from streamd.telemetry.heartbeat import REFUSED_STATE, Heartbeat, leads_here
from streamd.telemetry.logs import configure_logs
from streamd.telemetry.port import open_port
from streamd.telemetry.spans import begin_spans, end_spans

if TYPE_CHECKING:
    from streamd.ranks import Ranks

logger = structlog.get_logger()
FULL_OR_BROKEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Error numbers of a disk that accepts no more bytes."""
RUN_AGAIN = -1
"""Result of `run_role` after which this process must run the role again from its start. If it ended
instead, a service manager would wait longer before each restart."""
RETRIED_ERRORS = (LockedError, DiskError, KafkaError, DeviceMemoryError, RanksError)
"""Errors that a later start may not have."""


def run_role(
    settings: Settings, role: str, name: str = "", read: Callable[[], Settings] | None = None
) -> int:
    """Run one role in this process until a signal. If torchrun started this process, the role train
    runs as one rank.

    name: of the role's files; empty for the role's own name. read: reads the settings again at
    SIGHUP; without it the signal ends the process. Returns: exit status, or RUN_AGAIN. Raises:
    SettingsError if torchrun's variables contradict one another.
    """
    # Set up the process: its end, its files, its logs. A rank is killed when torchrun ends: it has
    # nothing to save, and may hang in an exchange in which it handles no signal.
    name = name or role
    started = torchrun_rank(os.environ)
    if started is not None:
        end_with_parent(signal.SIGKILL)
    end_with_supervisor(signal.SIGTERM if started is None else signal.SIGKILL)
    raise_file_limit()
    configure_logs(
        settings.telemetry.log_level,
        settings.telemetry.log_format,
        name,
        None if started is None else started.rank,
    )
    metrics.export_build_info()
    if started is None or started.rank == 0:
        begin_spans(role, name)

    stop, at_once = _stop_events()
    restart_requested = threading.Event()
    if read is not None and started is None:
        restart_requested = reload_at_hangup(settings, role, read, stop)
    rank = started or TorchrunRank(0, 1, 0)
    try:
        if SUPERVISED_BY not in os.environ:
            make_data_dir(settings.data_dir)
        with _as_disk_error(role, settings):
            _run(settings, role, name, rank, stop, at_once)
        if (gone := gone_supervisor()) is not None:
            logger.info("ended_with_supervisor", pid=gone, meaning="what started this role ended")
    except StreamdError as error:
        return _exit_status(error, settings, role, name, rank, stop)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        logger.error(
            "path_not_usable",
            path=str(error.filename),
            error=error.strerror,
            action="give this user rights to it, or move away what is in its place",
        )
        return 1
    finally:
        end_spans()
    return RUN_AGAIN if restart_requested.is_set() else 0


def _stop_events() -> tuple[threading.Event, threading.Event]:
    """Two events that SIGTERM and SIGINT set: the first signal stops the role, the second one ends
    its drain."""
    stop, at_once = threading.Event(), threading.Event()

    def on_signal(*_: object) -> None:
        (at_once if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop, at_once


def _run(
    settings: Settings,
    role: str,
    name: str,
    rank: TorchrunRank,
    stop: threading.Event,
    at_once: threading.Event,
) -> None:
    """Run a role until `stop`. at_once: set to end the server's drain. Raises: StreamdError,
    OSError."""
    if role == "serve":
        from streamd.daemon.serve_role import run_serve

        run_serve(settings, name, stop, at_once)
    elif role == "train":
        _run_train(settings, stop, rank)
    elif role == SCORE:
        _run_score(settings, stop)
    elif role == TRIAL:
        _run_trial(settings, stop)
    elif role == ARCHIVE:
        run_archive(settings, stop)
    elif role == FOLLOW:
        run_follow(settings, stop)
    else:
        run_ingest(settings, stop)


def _exit_status(
    error: StreamdError,
    settings: Settings,
    role: str,
    name: str,
    rank: TorchrunRank,
    stop: threading.Event,
) -> int:
    """Log the error that ended a role. Returns: the exit status: 1 if the supervisor must restart
    the role, REFUSED or ROLE_REFUSED if it must not, 0 after a stop; or RUN_AGAIN."""
    # A signal stops all ranks; the first rank may end before this one noticed it.
    if isinstance(error, RanksError) and stop.is_set():
        logger.info("stopped_without_other_ranks", error=str(error))
        return 0
    logger.error("refused", error=str(error), kind=type(error).__name__)
    if isinstance(error, SettingsError):
        return REFUSED
    # A deposed leader follows again in the same process, and a deposed trainer waits again; ranks
    # restart together. The heartbeat must not report a leader meanwhile.
    if isinstance(error, FencedError) and settings.log.member != "leader":
        if stop.is_set() or rank.size > 1:
            return int(rank.size > 1)
        Heartbeat(Paths.of(settings, name).learned, role, name).touch("follows again")
        return RUN_AGAIN
    if isinstance(error, RETRIED_ERRORS) and not isinstance(error, DataLossError):
        return 1
    if rank.rank == 0:
        Heartbeat(settings.data_dir, role, name).touch(REFUSED_STATE, why=str(error))
    return ROLE_REFUSED


@contextlib.contextmanager
def _as_disk_error(role: str, settings: Settings) -> Iterator[None]:
    """Raise the OSError of a full or broken disk as a DiskError, after which the supervisor
    restarts the role. Other errors stay as they are."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_OR_BROKEN:
            raise
        folder = Paths.of(settings, role).learned
        raise DiskError(
            f"{role} could not write its files in {folder}: {error.strerror}.",
            "free space or mend the disk; the role then continues by itself from its last files.",
        ) from error


def _run_score(settings: Settings, stop: threading.Event) -> None:
    """Write the score of each event to the score topic until `stop`. Raises: SettingsError."""
    from streamd.gpu import choose_device
    from streamd.scoring.role import run_score

    if lock_name(settings.data_dir, SCORE, stop) is not None:
        prepare = partial(make_kernels_ready, choose_device(settings.server.device))
        run_score(settings, prepare, partial(_leads, settings), stop)


def _leads(settings: Settings) -> bool:
    """Whether this machine leads its log, or is the only one: only the leader scores events and
    joins outcomes."""
    return not settings.log.name or leads_here(settings.data_dir)


def _run_trial(settings: Settings, stop: threading.Event) -> None:
    """Join the impressions and outcomes of the trial until `stop`. Raises: SettingsError."""
    from streamd.trials.trial_role import run_trial

    if lock_name(settings.data_dir, TRIAL, stop) is not None:
        run_trial(settings, partial(_leads, settings), stop)


def _run_train(settings: Settings, stop: threading.Event, rank: TorchrunRank) -> None:
    """Run the trainer, or one rank of it, until `stop` is set on the first rank.

    1. Set up the process, and compile the kernels.
    2. Take the lock of the trainer on the first rank, before any rank reads the state that the
       process before may still write.
    3. Join the other ranks, and train.
    """
    from streamd.registry.locks import lock_trainer

    # 1. Set up the process.
    paths, beat, device = _prepare_rank(settings, stop, rank)

    # 2. One trainer per data directory. Only the first rank has the lock and a port; the others
    # write nothing but a heartbeat.
    is_first = rank.rank == 0
    lock = None
    if is_first:
        lock = wait_for_lock(lambda: lock_trainer(paths.learned), beat, stop)
        if lock is None:
            return
    try:
        if is_first:
            open_port(
                settings.telemetry.train_port,
                settings.server.host,
                beat,
                ApiKeys(settings.server).allows,
            )
        if not stop.is_set():
            # 3. Join and train.
            with contextlib.ExitStack() as stack:
                if is_first:
                    stack.enter_context(_mlflow_log(settings, paths))
                on_step = None
                if is_first and settings.log.name:
                    from streamd.replica.parts import training_in_term

                    on_step = stack.enter_context(training_in_term(settings, paths, beat, stop))
                # The other ranks stop with the first one.
                ranks = _join(settings, rank, device, stop)
                stack.callback(ranks.end)
                own_stop = stop if is_first else threading.Event()
                _learn(settings, device, ranks, beat, own_stop, on_step)
    finally:
        if lock is not None:
            os.close(lock)


def _prepare_rank(
    settings: Settings, stop: threading.Event, rank: TorchrunRank
) -> tuple[Paths, Heartbeat, str]:
    """Set up the process of a rank, and compile its kernels. Returns: the rank's directories, its
    heartbeat, and its device, "cpu" or "cuda"."""
    from streamd.gpu import choose_device, make_torch_deterministic, select_gpu
    from streamd.models.architectures import unused_settings

    # Ingest and server have priority over training.
    os.nice(settings.training.nice)
    make_torch_deterministic(settings.training.threads)
    logger.info("allocator", keeps_freed_memory=keep_freed_memory(os.environ))
    if unused := unused_settings(settings.model):
        logger.warning(
            "model_settings_unused",
            settings=unused,
            meaning=f"model.name {settings.model.name} does not use them",
        )
    if rank.size > 1 and settings.device == "cuda":
        select_gpu(rank.local_rank)
    paths = Paths.of(settings, rank_names(rank.size)[rank.rank])
    beat = Heartbeat(paths.learned, "train", paths.role)
    with ended_by_signals(stop) if rank.size > 1 else contextlib.nullcontext():
        make_kernels_ready(should_stop=beat.until(stop, "preparing"))
    device = choose_device(settings.device, rank.size)
    metrics.gpu_in_use.set(device == "cuda")
    return paths, beat, device


@contextlib.contextmanager
def _mlflow_log(settings: Settings, paths: Paths) -> Iterator[None]:
    """Log windows to MLflow in another thread inside the block, if the settings have a server."""
    if not settings.mlflow.tracking_uri:
        yield
        return
    from streamd.evaluation.mlflow.experiment import INSTALL, is_installed
    from streamd.evaluation.mlflow.live_run import LiveRun
    from streamd.replica.worker_thread import StepThread

    if not is_installed():
        logger.error("mlflow_not_installed", action=INSTALL)
        yield
        return
    thread = StepThread("mlflow", lambda: LiveRun.of(settings, paths))
    try:
        yield
    finally:
        thread.close()


def _join(settings: Settings, rank: TorchrunRank, device: str, stop: threading.Event) -> "Ranks":
    """Join the other ranks. stop: set by a signal, ends the wait. Raises: RanksError,
    SettingsError."""
    from streamd.ranks import ALONE, Ranks

    if rank.size == 1:
        return ALONE
    mesh = settings.training.mesh
    shards = 0 if mesh is None else mesh[1]
    if mesh is not None and mesh[0] * shards != rank.size:
        raise SettingsError(
            f"training.mesh has {mesh[0]} x {shards} ranks, and {rank.size} were started.",
            "start as many ranks as the mesh has.",
        )
    with ended_by_signals(stop):
        ranks = Ranks.join(settings.training.rank_timeout_seconds, device, shards)
    logger.info("rank_joined", size=ranks.size)
    return ranks


def _learn(
    settings: Settings,
    device: str,
    ranks: "Ranks",
    beat: Heartbeat,
    stop: threading.Event,
    on_step: Callable[[str], None] | None,
) -> None:
    """Train until `stop` is set on the first rank. on_step: as in `Trainer`; None for none. Raises:
    FencedError if another trainer has taken over."""
    from streamd.eventlog.delivery import Wait
    from streamd.eventlog.reader import LogReader
    from streamd.registry import Registry
    from streamd.training.trainer import Trainer
    from streamd.training.window_attempts import Stopped

    # Several machines may share the directory of versions and checkpoints; each has its own log.
    paths = Paths.of(settings, "train")

    def wait_for_ingest() -> None:
        beat.touch("waiting for ingest")
        if stop.is_set():
            raise Stopped

    # Wait for ingest to create the log. The trainer also returns when the log gets further sets or
    # features, and starts again with a new reader.
    while not ranks.broadcast(stop.is_set()):
        reader = LogReader.open(paths.log, keep_keys=False)
        if ranks.all(reader is not None):
            assert reader is not None
            registry = Registry.of(settings, paths, Wait(math.inf, wait_for_ingest))
            on_step = on_step or (lambda _: None)
            with contextlib.suppress(Stopped):
                Trainer(
                    settings,
                    paths,
                    device,
                    reader,
                    registry,
                    SystemClock(),
                    beat,
                    on_step,
                    ranks,
                    stop,
                ).run(stop)
        else:
            beat.touch("waiting")
            stop.wait(0.1)

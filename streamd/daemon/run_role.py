"""The roles, each as one process.

This module may import all packages: it assembles the parts of each role.
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
from streamd.daemon.role_lock import lock_name, once_unlocked
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
"""Errors of a disk that takes no bytes."""
BEGIN_AGAIN = -1
"""Not an exit status: the process is to run the role again, from its start. If it ended, a service
manager would wait longer each time before it starts it again."""
TRIED_AGAIN = (LockedError, DiskError, KafkaError, DeviceMemoryError, RanksError)
"""Errors that may be over the next time."""


def run_role(
    settings: Settings, role: str, name: str = "", read: Callable[[], Settings] | None = None
) -> int:
    """Run one role in this process until a signal. If torchrun started this process, the train role
    runs as one of its ranks.

    name: of the role's files, by default the role's own. read: reads the settings again at SIGHUP;
    without it the signal ends the process. Returns: exit status, or BEGIN_AGAIN. Raises:
    SettingsError if torchrun's variables contradict one another.
    """
    # Set up the process: its end, its files, its logs. A rank has nothing to put in order without
    # torchrun, and one that hangs would not see a signal that can be caught.
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
    metrics.say_build()
    if started is None or started.rank == 0:
        begin_spans(role, name)

    stop, at_once = _set_by_signals()
    begins_again = threading.Event()
    if read is not None and started is None:
        begins_again = reload_at_hangup(settings, role, read, stop)
    rank = started or TorchrunRank(0, 1, 0)
    try:
        if SUPERVISED_BY not in os.environ:
            make_data_dir(settings.data_dir)
        with _disk_errors(role, settings):
            _run(settings, role, name, rank, stop, at_once)
        if (gone := gone_supervisor()) is not None:
            logger.info("ended_with_supervisor", pid=gone, meaning="what started this role ended")
    except StreamdError as error:
        return _status_after(error, settings, role, name, rank, stop)
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
    return BEGIN_AGAIN if begins_again.is_set() else 0


def _set_by_signals() -> tuple[threading.Event, threading.Event]:
    """Events that signals set: the first signal stops the role, a second one ends a drain."""
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
    """Run a role until `stop`. at_once: ends the server's drain. Raises: StreamdError, OSError."""
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


def _status_after(
    error: StreamdError,
    settings: Settings,
    role: str,
    name: str,
    rank: TorchrunRank,
    stop: threading.Event,
) -> int:
    """Log the error that ended a role. Returns: the exit status, by which the supervisor decides
    whether to start it again."""
    # A rank that a signal stops as well may find that the first one has left.
    if isinstance(error, RanksError) and stop.is_set():
        logger.info("stopped_without_other_ranks", error=str(error))
        return 0
    logger.error("refused", error=str(error), kind=type(error).__name__)
    if isinstance(error, SettingsError):
        return REFUSED
    # A standby's process begins again as a follower, or as a trainer that waits; a rank, together
    # with the others. Until then it must not count as the leader.
    if isinstance(error, FencedError) and settings.log.member != "leader":
        if stop.is_set() or rank.size > 1:
            return int(rank.size > 1)
        Heartbeat(Paths.of(settings, name).learned, role, name).touch("follows again")
        return BEGIN_AGAIN
    if isinstance(error, TRIED_AGAIN) and not isinstance(error, DataLossError):
        return 1
    if rank.rank == 0:
        Heartbeat(settings.data_dir, role, name).touch(REFUSED_STATE, why=str(error))
    return ROLE_REFUSED


@contextlib.contextmanager
def _disk_errors(role: str, settings: Settings) -> Iterator[None]:
    """Raise an error of a full or broken disk as a DiskError, after which the supervisor starts the
    role again; other errors stay as they are."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_OR_BROKEN:
            raise
        folder = Paths.of(settings, role).learned
        raise DiskError(
            f"What {role} keeps in {folder} could not be written: {error.strerror}.",
            "free space or mend the disk; it goes on by itself from what was written last.",
        ) from error


def _run_score(settings: Settings, stop: threading.Event) -> None:
    """Score each event into the score topic until `stop`. Raises: SettingsError."""
    from streamd.gpu import choose_device
    from streamd.scoring.role import run_score

    if lock_name(settings.data_dir, SCORE, stop) is not None:
        prepare = partial(make_kernels_ready, choose_device(settings.server.device))
        run_score(settings, prepare, partial(_leads, settings), stop)


def _leads(settings: Settings) -> bool:
    """Whether this machine leads: of the members of one log only one scores, and joins."""
    return not settings.log.name or leads_here(settings.data_dir)


def _run_trial(settings: Settings, stop: threading.Event) -> None:
    """Join impressions and outcomes of the trial until `stop`. Raises: SettingsError."""
    from streamd.trials.trial_role import run_trial

    if lock_name(settings.data_dir, TRIAL, stop) is not None:
        run_trial(settings, partial(_leads, settings), stop)


def _run_train(settings: Settings, stop: threading.Event, rank: TorchrunRank) -> None:
    """Run the trainer, or one rank of it, until `stop`; of several ranks that of the first."""
    from streamd.gpu import choose_device, fix_torch, take_gpu
    from streamd.models.architectures import unused_settings
    from streamd.registry.locks import lock_trainer

    # Set up the process: learning yields to ingest and server.
    os.nice(settings.training.nice)
    fix_torch(settings.training.threads)
    logger.info("allocator", keeps_freed_memory=keep_freed_memory(os.environ))
    if unused := unused_settings(settings.model):
        logger.warning(
            "model_settings_unused",
            settings=unused,
            meaning=f"model.name {settings.model.name} does not use them",
        )
    if rank.size > 1 and settings.device == "cuda":
        take_gpu(rank.local_rank)
    paths = Paths.of(settings, rank_names(rank.size)[rank.rank])
    beat = Heartbeat(paths.learned, "train", paths.role)
    with ended_by_signals(stop) if rank.size > 1 else contextlib.nullcontext():
        make_kernels_ready(should_stop=beat.until(stop, "preparing"))
    device = choose_device(settings.device, rank.size)
    metrics.gpu_in_use.set(device == "cuda")

    # One trainer for each data directory. Of its ranks the first alone can be asked; the others
    # write nothing but a heartbeat.
    is_first = rank.rank == 0
    lock = None
    if is_first:
        lock = once_unlocked(lambda: lock_trainer(paths.learned), beat, stop)
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
            with contextlib.ExitStack() as stack:
                if is_first:
                    stack.enter_context(_logging_to_mlflow(settings, paths))
                on_step = None
                if is_first and settings.log.name:
                    from streamd.replica.parts import training_in_term

                    on_step = stack.enter_context(training_in_term(settings, paths, beat, stop))
                # The others stop when the first one says so.
                ranks = _join(settings, rank, device, stop)
                stack.callback(ranks.end)
                own_stop = stop if is_first else threading.Event()
                _learn(settings, device, ranks, beat, own_stop, on_step)
    finally:
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def _logging_to_mlflow(settings: Settings, paths: Paths) -> Iterator[None]:
    """Log windows to MLflow in a thread of its own, if the settings ask for it."""
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
    """Join the other ranks. stop: set by a signal. Raises: RanksError, SettingsError."""
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
    """Learn until `stop` is set on the first rank. on_step: as of `Trainer`, None for none. Raises:
    FencedError if another trainer has taken over."""
    from streamd.eventlog.delivery import Wait
    from streamd.eventlog.reader import LogReader
    from streamd.registry import Registry
    from streamd.training.trainer import Trainer
    from streamd.training.window_attempts import Stopped

    # Several machines may share the directory of what is learned; each has a log of its own.
    paths = Paths.of(settings, "train")

    def wait_for_ingest() -> None:
        beat.touch("waiting for ingest")
        if stop.is_set():
            raise Stopped

    # The trainer waits for ingest to make the log. Where the log gets further sets or features, it
    # goes on with a new reader.
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

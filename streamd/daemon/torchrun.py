"""Starts the trainer's ranks on this machine by torchrun, whose agent this process becomes, and
restarts all of them after one ends."""

import os
import tempfile
from collections.abc import Sequence

import structlog

from streamd.daemon.supervisor import REFUSED, ROLE_REFUSED, make_data_dir, role_environment
from streamd.processes import PYTHON, SUPERVISED_BY, end_with_supervisor
from streamd.settings.loading import Settings
from streamd.telemetry.heartbeat import REFUSED_STATE, Heartbeat, refusals
from streamd.telemetry.logs import configure_logs

logger = structlog.get_logger()
RANK = (*PYTHON, "-m", "streamd", "run", "--role", "train")
"""Command of one rank."""
MAX_RESTARTS = 3
"""How often the ranks are started again at once. Then the agent ends too, and its supervisor, which
makes pauses, starts it again."""
UNSHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Variable that, where it is 1, gives the ranks a store of their own at each start. The agent's
store, which they share otherwise, still holds what a killed rank left there."""
INTERFACE = "GLOO_SOCKET_IFNAME"
"""Variable that names the network interface at which gloo listens, to whoever connects."""


def run_ranks(settings: Settings, command: Sequence[str] = RANK) -> int:
    """Run `training.ranks` ranks until a signal, which ends them in order.

    command: of one rank. Returns: exit status: that of a rank which refuses settings or data, 1 if
    ranks died more than MAX_RESTARTS times. Raises: SettingsError if data_dir is unusable.
    """
    # Set up the process: its end, its logs, and what its children inherit.
    end_with_supervisor()
    configure_logs(settings.telemetry.log_level, settings.telemetry.log_format, "torchrun")
    if SUPERVISED_BY not in os.environ:
        make_data_dir(settings.data_dir)
    inherited = role_environment(settings, "train", os.environ)
    os.environ.clear()
    os.environ.update({INTERFACE: "lo"} | inherited | {UNSHARED_STORE: "1"})
    os.environ[SUPERVISED_BY] = str(os.getpid())

    # torch is loaded only where there are ranks to start.
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # torchrun would start again ranks that refuse, so it is not asked to: each try is a new group.
    with tempfile.TemporaryDirectory(prefix="streamd-ranks-") as folder:
        agent = [
            "--standalone",
            "--local-addr=127.0.0.1",
            f"--nproc-per-node={settings.training.ranks}",
            "--max-restarts=0",
            f"--log-dir={folder}",
            "--no-python",
            *command,
        ]
        for restarts_left in reversed(range(MAX_RESTARTS + 1)):
            try:
                run.main(agent)
                return 0
            except SignalException as stopped:
                logger.info("ranks_stopped", signal=stopped.sigval.name)
                return 0
            except ChildFailedError as error:
                ends = {rank: failure.exitcode for rank, failure in error.failures.items()}
            logger.warning("ranks_ended", statuses=ends, restarts_left=restarts_left)

            # A rank ended by itself because of settings or data: a restart would end the same.
            if REFUSED in ends.values():
                return REFUSED
            if ROLE_REFUSED in ends.values():
                _report_refusal(settings, ends)
                return ROLE_REFUSED
    return 1


def _report_refusal(settings: Settings, ends: dict[int, int]) -> None:
    """Write the refusal to the role's heartbeat, unless the first rank has done so: the other ranks
    only log theirs."""
    if "train" not in refusals(settings.data_dir, ["train"]):
        ranks = [str(rank) for rank, status in ends.items() if status == ROLE_REFUSED]
        why = f"rank {', '.join(ranks)} refused its data; its log lines say why"
        Heartbeat(settings.data_dir, "train").touch(REFUSED_STATE, why=why)

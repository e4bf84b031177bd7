"""Runs torchrun's agent in this process: it starts the trainer's ranks on this machine, and
restarts all of them after one dies."""

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
"""Restarts of the ranks without a pause. Then the agent ends, and its supervisor restarts it after
a pause."""
UNSHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Variable that, if it is 1, gives the ranks a new rendezvous store at each start. The agent's own
store, the default, still has the entries of killed ranks."""
INTERFACE = "GLOO_SOCKET_IFNAME"
"""Variable with the network interface on which gloo listens; here by default loopback, since gloo
accepts any connection."""


def run_ranks(settings: Settings, command: Sequence[str] = RANK) -> int:
    """Run `training.ranks` ranks until a signal, which lets them end by themselves.

    command: of one rank. Returns: 0 after a signal; REFUSED or ROLE_REFUSED if a rank refused its
    settings or data; 1 if ranks died more than MAX_RESTARTS times. Raises: SettingsError if
    data_dir is unusable.
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

    # Only a start of several ranks imports torch in this process.
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # torchrun's own restarts would also restart ranks that refused, so each try is a new group.
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

            # If a rank refused its settings or data, a restart would end in the same way.
            if REFUSED in ends.values():
                return REFUSED
            if ROLE_REFUSED in ends.values():
                _report_refusal(settings, ends)
                return ROLE_REFUSED
    return 1


def _report_refusal(settings: Settings, ends: dict[int, int]) -> None:
    """Write the refusal to the role's heartbeat, unless the first rank did: other ranks only log
    theirs."""
    if "train" not in refusals(settings.data_dir, ["train"]):
        ranks = [str(rank) for rank, status in ends.items() if status == ROLE_REFUSED]
        why = f"rank {', '.join(ranks)} refused its data; its log lines say why"
        Heartbeat(settings.data_dir, "train").touch(REFUSED_STATE, why=why)

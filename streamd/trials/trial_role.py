"""The parts of the trial role, put together."""

import sys
import threading
from collections.abc import Callable

import structlog

from streamd.errors import SettingsError, StreamdError
from streamd.events import MICROSECONDS
from streamd.roles import TRIAL, make_folder
from streamd.settings.loading import Settings
from streamd.settings.paths import Paths
from streamd.telemetry.api_keys import ApiKeys
from streamd.telemetry.heartbeat import Heartbeat
from streamd.telemetry.port import open_port
from streamd.trials.joining import TrialLoop
from streamd.trials.trial_state import Definition, state_path
from streamd.trials.trial_topic import TrialTopic

logger = structlog.get_logger()


def run_trial(settings: Settings, leads: Callable[[], bool], stop: threading.Event) -> None:
    """Join impressions and outcomes until `stop`.

    leads: whether this machine is the one that joins. Raises: SettingsError if there is no trial,
    if it runs with another definition, or if the port is taken.
    """
    trial = settings.trials
    if not trial.name:
        raise SettingsError("No trial is set.", "set trials.name, trials.arms and trials.topic.")
    beat = Heartbeat(settings.data_dir, TRIAL)
    open_port(
        settings.telemetry.trial_port, settings.server.host, beat, ApiKeys(settings.server).allows
    )
    beat.end_when_stalled()
    make_folder(settings.data_dir, TRIAL)

    # The loop of topic and log.
    loop = TrialLoop(
        Paths.of(settings, TRIAL).log,
        state_path(settings.data_dir, trial.name),
        Definition(
            name=trial.name,
            shares=trial.arms,
            horizon_seconds=trial.horizon_seconds,
            edge_set=trial.edge_set,
        ),
        MICROSECONDS[settings.stream.time_unit],
        beat,
        leads,
        lambda: TrialTopic(settings.kafka, trial.topic),
    )
    try:
        loop.run(stop)
    except (StreamdError, OSError) as error:
        # For example, a follower may have replaced the log by a newer one: a restarted process
        # opens that.
        logger.exception("trial_failed", error=str(error))
        sys.exit(1)

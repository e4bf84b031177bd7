"""The roles of a machine, and the directories that a role reads and writes."""

from dataclasses import dataclass
from pathlib import Path

from streamd.roles import RANK, folder_of, roles_of
from streamd.settings.tree import Settings


@dataclass(frozen=True, slots=True)
class Paths:
    """The directories of one role.

    log: data directory of the event log. learned: directory of versions, checkpoints, replay and
    history; it differs from `log` only with `training.checkpoint_dir`, which trainers of several
    machines share. role: name of the role, and of its folder in `roles/`.
    """

    log: Path
    learned: Path
    role: str

    @classmethod
    def of(cls, settings: Settings, role: str) -> "Paths":
        """The directories of a role under these settings. role: its name, such as `train-rank-1` or
        the `--name` of a server."""
        log = learned = settings.data_dir
        if role == "train" or role.startswith(RANK):
            learned = settings.training.checkpoint_dir or log
        return cls(log, learned, role)

    @property
    def folder(self) -> Path:
        """The role's own folder, which may not exist yet: retention lease, facts, heartbeat."""
        return folder_of(self.learned, self.role)


def roles_here(settings: Settings) -> tuple[str, ...]:
    """The roles of `streamd run` under these settings."""
    log = settings.log
    trial = settings.trials.name
    return roles_of(log.name, log.store, log.member, settings.server.score_topic, trial)

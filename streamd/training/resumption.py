"""The start of a trainer: it resumes from the newest checkpoint, or else from the champion."""

import time
from collections.abc import Callable

import structlog

from streamd.errors import CorruptionError, VersionError
from streamd.eventlog.reader import LogReader
from streamd.models.loading import load_model
from streamd.models.rule import NAME as RULE
from streamd.registry import Registry
from streamd.training.checkpoint import TrainerPosition
from streamd.training.learner import Learner
from streamd.training.learning_settings import LearningSettings
from streamd.training.ledger import Ledger
from streamd.training.recorder import Recorder
from streamd.training.versions.contest import Contest
from streamd.training.versions.nightly import Nightly
from streamd.training.versions.shadow import Comparison
from streamd.training.window_report import report_trained_until

logger = structlog.get_logger()


class Resumption:
    """Restores the parts of a new trainer from durable state, all to the same event.

    Owner: the trainer, at its start.

    position: the event to which the parts are restored; the log's first event if nothing is stored.
    """

    def __init__(
        self,
        settings: LearningSettings,
        log: LogReader,
        versions: Registry,
        learner: Learner,
        recorder: Recorder,
        ledger: Ledger,
        contest: Contest,
        nightly: Nightly,
        rebuilding: Callable[[int], Callable[[int], None]],
    ) -> None:
        """rebuilding: makes the progress callback of a rebuild up to an event id."""
        self._settings = settings
        self._log = log
        self._versions = versions
        self._learner = learner
        self._recorder = recorder
        self._ledger = ledger
        self._contest = contest
        self._nightly = nightly
        self._rebuilding = rebuilding
        self.position = TrainerPosition(log.first_edge, log.first_edge)

    def resume(self) -> TrainerPosition:
        """Resume from the newest checkpoint, or from the champion if the checkpoint is damaged.
        Start at the log's first event if there is no checkpoint, if it has other settings than this
        trainer, or if the champion cannot be used either.

        1. Load weights, memory, replay and the comparison.
        2. Rebuild graph and facts up to the same event.
        3. Load the shadow, advance its memory to that event, and journal its proof if that is
           missing.
        4. Write a checkpoint if the old one was damaged, or does not know the file of the history.
           Before step 3, it would name no shadow.
        5. Load the incumbent.
        6. Write the hold for this position.

        Raises: Stopped; VersionError if the checkpoint is of another log or a newer release.
        """
        # 1. Weights, memory, replay and the contest.
        from_champion = False
        try:
            shadow = self._from_checkpoint()
        except CorruptionError as error:
            logger.error(
                "checkpoint_lost",
                error=str(error),
                meaning="training continues from the champion; without one it starts from scratch",
            )
            from_champion = self._from_champion()
            shadow = (self._versions.shadow() or "") if from_champion else ""

        # 2. Graph and facts, rebuilt up to the same event.
        started = time.perf_counter()
        event = self.position.event
        report_trained_until(self._log, event, self._settings.width_us)
        self._ledger.resume(event)
        self._recorder.rebuild(event, on_slice=self._rebuilding(event))

        # 3. The shadow, its memory advanced to the same event.
        if shadow:
            self._ledger.prove(self._contest.restore_shadow(shadow, event))
        # 4. A checkpoint instead of the damaged one.
        if from_champion or self._ledger.has_new_history:
            self._save()
        # 5. The incumbent.
        self._contest.restore_incumbent()
        # 6. The hold.
        self._ledger.write_hold(self.position)
        logger.info(
            "trainer_started",
            edge=event,
            continues_from=self._contest.version or RULE,
            rebuild_seconds=round(time.perf_counter() - started, 3),
        )
        return self.position

    def _from_checkpoint(self) -> str:
        """Load the newest checkpoint if it has this trainer's settings; else replace it by a
        checkpoint at the log's start.

        Returns: the shadow's name, "" for none. Raises: CorruptionError, VersionError.
        """
        cursor = self._ledger.read()
        if cursor is None:
            return ""
        if not self._settings.continues(cursor.settings):
            logger.warning(
                "training_starts_over",
                reason="the trainer's checkpoint has other model or window settings",
                meaning="training starts at the log's first event",
            )
            self._ledger.begin_with_new_settings(cursor)
            self._save()
            return ""
        # Weights, memory, replay and the nightly baseline, all at the cursor's position.
        self._ledger.load(cursor, self._learner, self._log.state)
        self._nightly.restore(cursor.nightly)
        self.position = cursor.position
        num_events, *sums = cursor.compared
        self._contest.restore(cursor.champion, Comparison(int(num_events), *sums))
        return cursor.shadow

    def _from_champion(self) -> bool:
        """Resume from the champion's weights and memory, with a new optimizer and no replay.

        Returns: False if no champion with these settings can be read. Training then begins as at a
        first start.
        """
        # The champion, if it has these settings and its event is in this log.
        name = self._versions.champion()
        if name is None:
            return False
        log, device, ranks = self._log, self._learner.model.device, self._learner.ranks
        try:
            version = self._versions.load(name)
            manifest = version.manifest
            same_settings = self._settings.continues(manifest.fixed_settings)
            if not same_settings or not log.first_edge <= manifest.edge <= log.num_edges:
                raise VersionError(
                    f"Version {name} has other settings, or its event is not in the log.",
                    "none is needed.",
                )
            model, memory = load_model(version, log.state.schema, device, ranks=ranks)
        except VersionError as error:
            logger.error(
                "champion_not_followed",
                version=name,
                reason=str(error),
                meaning="training cannot resume from this version; it begins as at a first start",
            )
            return False
        # Records after its event are invalid: their windows are trained on again.
        self._learner.continue_from(model.state_dict(), memory)
        self.position = TrainerPosition(manifest.edge, manifest.first_edge)
        self._contest.restore(name, Comparison())
        self._ledger.rewind_to(self.position.event)
        return True

    def _save(self) -> None:
        self._ledger.save(self.position, self._learner, self._contest, self._nightly)

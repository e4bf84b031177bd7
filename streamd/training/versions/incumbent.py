"""The incumbent: a champion with other settings, which serves while this trainer learns a new
model.

Both score the same events, each with its own graph, facts, memory and window width.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamd.eventlog.reader import LogReader
from streamd.events import Float32, Int64
from streamd.models.loading import load_model
from streamd.ranks import ALONE, Ranks
from streamd.registry.stored_versions import Version
from streamd.training.device_transfer import DeviceTransfer
from streamd.training.learning_settings import LearningSettings
from streamd.training.recorder import Recorder
from streamd.training.versions.shadow import Shadow
from streamd.windows import Window, next_window
from streamd.windows.novelty import Novelty


class Paired(NamedTuple):
    """Events that both models have scored.

    event_E: int64[E], their ids. learned_EC, incumbent_EC: logits of the learner's version and of
    the incumbent, float32[E, 101] each. novelty: of the events.
    """

    event_E: Int64
    learned_EC: Float32
    incumbent_EC: Float32
    novelty: Novelty


class Incumbent:
    """A version with fixed weights; its graph, facts and memory advance with the log.

    It advances in windows of its own width and costs a second graph and fact table. Owner: the
    trainer.
    """

    def __init__(
        self,
        settings: LearningSettings,
        facts: Path,
        log: LogReader,
        version: Version,
        on_slice: Callable[[int], None],
        ranks: Ranks = ALONE,
    ) -> None:
        """settings: the trainer's. facts: the folder of the trainer's stored facts.
        on_slice: called with the event id reached during the rebuild of graph and facts.
        ranks: share its graph, memory and events.

        Raises: VersionError if the version's model cannot be built.
        """
        # This trainer's settings, with the version's model and window width.
        manifest = version.manifest
        windows = settings.windows.model_copy(update={"width_seconds": manifest.window_seconds})
        own = replace(settings, model=manifest.model_settings(), windows=windows)

        # Model and memory of the version.
        transfer = DeviceTransfer(own.device, own.gpu, log.state.schema.edge_feature_dim)
        model, memory = load_model(version, log.state.schema, transfer.device, ranks=ranks)
        self.name = manifest.name
        self._log = log
        self._width_us = own.width_us
        self._shadow = Shadow(manifest.name, model, memory, transfer)

        # Graph and facts by its settings, up to the event of its memory.
        self._ranks = ranks
        self._recorder = Recorder(own, log, ranks)
        self._recorder.live.restore_facts(facts, manifest.edge)
        self._recorder.rebuild(manifest.edge, on_slice=on_slice)
        none = np.zeros(0, np.int64), np.zeros((0, 101), np.float32)
        self._ours = none
        self._theirs = *none, Novelty.join([])

    def compare(
        self,
        event_E: Int64,
        logits_EC: Float32,
        novelty: Novelty,
        window: Window,
        on_chunk: Callable[[], None],
    ) -> Paired:
        """Advance to the end of a window of the learner's version, and pair the scores of both.

        event_E: int64 ids of the events that the learner's version scored in the window, ascending.
        logits_EC: its logits of them, float32[E, 101]. novelty: of the events.
        on_chunk: called after each chunk, to keep the heartbeat alive.

        Returns: the events that both have scored, as far as they were not returned before.
        """
        # Score all of the incumbent's windows that begin before this window ends.
        events = [np.zeros(0, np.int64)]
        logits = [np.zeros((0, 101), np.float32)]
        while (
            own := next_window(self._log, self._recorder.edge, self._width_us)
        ) and own.start_us < window.end_us:
            for chunk in self._recorder.chunks(own, recorded=own.end_edge > window.first_edge):
                own_EC = self._shadow.score(chunk)
                on_chunk()
                if own_EC is not None and chunk.score is not None:
                    events.append(chunk.score.event_E.numpy())
                    logits.append(own_EC)

        # Pair by event id: window widths differ, so either model may be ahead.
        new_E, new_EC = (self._ranks.gather(np.concatenate(own)) for own in (events, logits))
        order = np.argsort(new_E, kind="stable")
        ours = (
            np.concatenate([self._ours[0], new_E[order]]),
            np.concatenate([self._ours[1], new_EC[order]]),
        )
        theirs = (
            np.concatenate([self._theirs[0], event_E]),
            np.concatenate([self._theirs[1], logits_EC]),
            Novelty.join([self._theirs[2], novelty]),
        )
        both, own_at, at = np.intersect1d(
            ours[0], theirs[0], assume_unique=True, return_indices=True
        )

        # Keep the events that the other model has yet to score.
        done = min(ours[0].max(initial=-1), theirs[0].max(initial=-1))
        left_E, ahead_E = ours[0] > done, theirs[0] > done
        self._ours = ours[0][left_E], ours[1][left_E]
        self._theirs = theirs[0][ahead_E], theirs[1][ahead_E], theirs[2].rows(ahead_E)
        return Paired(both, theirs[1][at], ours[1][own_at], theirs[2].rows(at))

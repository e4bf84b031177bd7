"""The incumbent is a champion of other settings, which serves while a new model is learned.

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
from streamd.registry.registry import Version
from streamd.training.device_transfer import DeviceTransfer
from streamd.training.learning_settings import LearningSettings
from streamd.training.recorder import Recorder
from streamd.training.versions.shadow import Shadow
from streamd.windows import Window, next_window
from streamd.windows.novelty import Novelty


class Paired(NamedTuple):
    """Events that two models have scored: their ids, int64[E], the logits of the model that is
    learned and of the incumbent, float32[E, 101] each, and the events' novelty."""

    event_E: Int64
    learned_EC: Float32
    incumbent_EC: Float32
    novelty: Novelty


class Incumbent:
    """A version with fixed weights, whose graph, facts and memory move with the log.

    It moves in windows of its own width and costs a second graph and fact table. Owner: the
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
        """settings: the trainer's. facts: the folder of the trainer's stored facts. on_slice:
        called with the event id reached while graph and facts are made. ranks: that share its
        graph, memory and events.

        Raises: VersionError where the version's model cannot be built.
        """
        # This process's settings, with the version's model and windows.
        manifest = version.manifest
        windows = settings.windows.model_copy(update={"width_seconds": manifest.window_seconds})
        own = replace(settings, model=manifest.model_settings(), windows=windows)

        # The version itself.
        transfer = DeviceTransfer(own.device, own.gpu, log.state.schema.edge_feature_dim)
        model, memory = load_model(version, log.state.schema, transfer.device, ranks=ranks)
        self.name = manifest.name
        self._log = log
        self._width_us = own.width_us
        self._shadow = Shadow(manifest.name, model, memory, transfer)

        # Graph and facts of its settings, up to where its memory is.
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
        """Move to the end of a window of the other model, and pair the scores of both.

        event_E: int64 ids of the events that the other model scored in the window, ascending.
        logits_EC: the other model's logits of them, float32[E, 101]. novelty: of them.
        on_chunk: called after each chunk, so that the heartbeat goes on.
        Returns: the events that both have scored since the last call.
        """
        # Score the incumbent's own windows that begin before the other's ends.
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

        # Pair by event id: the widths of windows differ, so either may be ahead.
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

        # Keep what the other side has yet to score.
        done = min(ours[0].max(initial=-1), theirs[0].max(initial=-1))
        left_E, ahead_E = ours[0] > done, theirs[0] > done
        self._ours = ours[0][left_E], ours[1][left_E]
        self._theirs = theirs[0][ahead_E], theirs[1][ahead_E], theirs[2].rows(ahead_E)
        return Paired(both, theirs[1][at], ours[1][own_at], theirs[2].rows(at))

"""The champion of other settings that serves while a new model is learned beside it: same events,
each in its own way."""

from collections.abc import Callable

import numpy as np

from streamd.events import Float32, Int64
from streamd.gpu import choose_device
from streamd.models import restored
from streamd.registry.registry import Version
from streamd.roles import FACTS, folder_of
from streamd.segments.reader import LogReader
from streamd.settings import Settings
from streamd.training.device_transfer import DeviceTransfer
from streamd.training.recorder import Recorder
from streamd.training.retention_hold import NAME
from streamd.training.shadow import Shadow
from streamd.windows import Window, next_window


class Incumbent:
    """Weights stand still; graph, facts and memory of its own settings move with the log, in
    windows of its own width. Owner: the trainer. Costs a second graph and fact table for as long as
    it stands."""

    def __init__(
        self,
        settings: Settings,
        log: LogReader,
        version: Version,
        on_slice: Callable[[int], None],
    ) -> None:
        """on_slice: told the edge while graph and facts are made."""
        manifest = version.manifest
        own = settings.model_copy(
            update={
                "model": manifest.model_settings(),
                "windows": settings.windows.model_copy(
                    update={"width_seconds": manifest.window_seconds}
                ),
            }
        )
        carrier = DeviceTransfer(
            choose_device(settings.device), settings.gpu, log.state.schema.edge_feature_dim
        )
        model, memory = restored(version, log.state.schema, carrier.device)
        self.name = manifest.name
        self._log = log
        self._width_us = manifest.window_seconds * 1_000_000
        self._shadow = Shadow(manifest.name, model, memory, carrier)
        self._recorder = Recorder(own, log)
        facts = folder_of(settings.data_dir, NAME) / FACTS
        self._recorder.live.restore_facts(facts, manifest.edge)
        self._recorder.rebuild(manifest.edge, on_slice=on_slice)
        self._ours = self._theirs = np.zeros(0, np.int64), np.zeros((0, 101), np.float32)

    def compare(
        self, event_E: Int64, logits_EC: Float32, window: Window, on_chunk: Callable[[], None]
    ) -> tuple[Float32, Float32]:
        """Move to the end of a window of the other model's. Returns: the other's logits and its
        own, float32[E, 101] each, of the events that both have scored since the last call: those
        behind what it learned from itself.

        event_E: what the other scored of that window, ids ascending, with logits_EC.
        """
        events = [self._ours[0]]
        logits = [self._ours[1]]
        while (
            own := next_window(self._log, self._recorder.edge, self._width_us)
        ) and own.start_us < window.end_us:
            for chunk in self._recorder.chunks(own, recorded=own.end_edge > window.first_edge):
                said = self._shadow.score(chunk, self._log.deletions.of_nodes)
                on_chunk()
                if said is not None and chunk.score is not None:
                    events.append(chunk.score.event_E.numpy())
                    logits.append(said)
        ours = np.concatenate(events), np.concatenate(logits)
        theirs = (
            np.concatenate([self._theirs[0], event_E]),
            np.concatenate([self._theirs[1], logits_EC]),
        )
        _, own_at, at = np.intersect1d(ours[0], theirs[0], assume_unique=True, return_indices=True)
        done = min(ours[0].max(initial=-1), theirs[0].max(initial=-1))
        self._ours, self._theirs = ((e[e > done], x[e > done]) for e, x in (ours, theirs))
        return theirs[1][at], ours[1][own_at]

"""A trainer that learns nothing: its versions are two numbers, and all else is the product's: registry, checkpoints, terms, the models topic."""

import contextlib
import json
import math
import os
from types import SimpleNamespace

import numpy as np

from streamd.daemon.role_lock import wait_for_lock
from streamd.eventlog.delivery import WAIT, Wait
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.upkeep.holds import Hold, write_hold
from streamd.registry import Registry
from streamd.registry.candidate import Candidate, TrainResult
from streamd.registry.locks import lock_trainer
from streamd.replica.parts import training_in_term
from streamd.settings.paths import Paths
from streamd.storage import DISK, ImmutableFile, write_durably, write_folder_durably
from streamd.telemetry.heartbeat import Heartbeat
from streamd.tensors import file_checksum
from streamd.training.handover import CHECKPOINTS, newest_checkpoint
from streamd.training.window_attempts import Stopped
from streamd.training.window_records import WindowRecords
from streamd.windows import Window
from streamd.windows.history import WindowRecord

PAUSES = 0.5, 6.0
"""Seconds between two windows."""
PROVEN = 0.4
"""Share of the versions that are proven at once."""


def run_train(settings, stop, chance):
    """The role, as `streamd.daemon.run_role` runs it. chance: random numbers of this process."""
    paths = Paths.of(settings, "train")
    beat = Heartbeat(paths.learned, "train", paths.role)
    lock = wait_for_lock(lambda: lock_trainer(paths.learned), beat, stop)
    if lock is None:
        return
    try:
        if not settings.log.name:
            with contextlib.suppress(Stopped):
                Learner(settings, paths, lambda step: None, chance, _wait_for_ingest(beat, stop)).run(stop)
            return
        with training_in_term(settings, paths, beat, stop) as on_step:
            if not stop.is_set():
                Learner(settings, paths, on_step, chance).run(stop)
    finally:
        os.close(lock)


def _wait_for_ingest(beat, stop):
    def on_wait():
        beat.touch("waiting for ingest")
        if stop.is_set():
            raise Stopped

    return Wait(math.inf, on_wait)


class Learner:
    """Owner: the train process."""

    def __init__(self, settings, paths, on_step, chance, wait=WAIT):
        self._settings, self._folder, self._on_step, self._chance = settings, paths.learned, on_step, chance
        self._registry = Registry.of(settings, paths, wait)
        self._records = WindowRecords(paths.learned, self._registry.journal)
        self._edge, self._number, self._version = 0, 0, ""

    def run(self, stop):
        """Resume from the newest checkpoint, and learn until the end."""
        while JournalTail.open(self._settings.data_dir) is None:
            if stop.wait(1.0):
                return
        self._registry.sweep()
        if (newest := newest_checkpoint(self._folder)) is not None:
            cursor = json.loads((newest / "cursor.json").read_text())
            self._edge, self._version = cursor["edge"], cursor["version"]
            self._records.restore(SimpleNamespace(history_bytes=cursor["history_bytes"], records=cursor["records"]))
            self._number = int(newest.name.split(".")[1])
        self._records.resume(self._edge)
        while not stop.is_set():
            write_hold(self._folder, "train", Hold(self._edge, self._edge))
            self._on_step("rest")
            stop.wait(self._chance.uniform(*PAUSES))
            tail = JournalTail.open(self._settings.data_dir)
            if tail is not None and tail.state.num_edges > self._edge:
                self._learn(tail.state)

    def _learn(self, state):
        """Publish a version of all events up to now, record the window, and write the checkpoint after it."""
        first, edge = self._edge, state.num_edges
        window = Window(first * 10, edge * 10, first, edge)
        parent = self._registry.moved_by_hand() or self._version
        self._on_step("publish")
        version = self._registry.publish(self._candidate(window, state, parent)).version
        if self._chance.random() < PROVEN:
            self._registry.prove(version, "proven")
        self._records.add(WindowRecord(start_us=window.start_us, end_us=window.end_us, first_edge=first, end_edge=edge, num_scored=5, version=version,
                                                 scored_by="", promoted=True, reason="", scores={}, loss=None, seconds={}, finished_at=float(edge)))
        self._edge, self._version, self._number = edge, version, self._number + 1
        self._write_checkpoint()
        self._records.send()

    def _candidate(self, window, state, parent):
        return Candidate(window=window, edge=window.end_edge, seq=state.seq, weights={"w": np.full(2, window.end_edge, np.float32)},
                         memory=lambda: self._memory(window.end_edge), memory_us=5, parent=parent, facts=("met",), schema=state.schema,
                         scores={"live": {"mrr": 0.5}}, learned=TrainResult(loss=0.1, finite=True, tail_before=0.5, tail_after=0.6, num_tail=20),
                         model=self._settings.model, training=self._settings.training, window_seconds=self._settings.windows.width_seconds)

    def _memory(self, edge):
        """Files of a memory: messages, which differ in each version, and rows, which versions share."""
        out = []
        for name, content in (("messages", f"{edge}"), ("rows", "rows")):
            path = self._folder / "train" / f"memory-{name}"
            path.parent.mkdir(exist_ok=True)
            write_durably(path, content.encode())
            out.append(ImmutableFile(path, file_checksum(path)))
        return tuple(out)

    def _write_checkpoint(self):
        cursor = {"edge": self._edge, "history_bytes": self._records.num_bytes, "records": self._records.waiting, "replay": {"offered": 0, "chunks": []}, "nightly": "", "version": self._version}
        folder = self._folder / CHECKPOINTS
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self._edge:020d}.{self._number:06d}"
        with contextlib.suppress(AssertionError):
            write_folder_durably(folder / name, {"state.safetensors": f"state {self._edge}".encode(), "cursor.json": json.dumps(cursor).encode()})
        for old in [path for path in folder.iterdir() if path.name[:1].isdigit() and path.name != name]:
            DISK.remove_folder(old)

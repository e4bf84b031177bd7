"""Works on requests to erase nodes: sends their deletes, requests compaction, and proves the
result.

A server runs it in a process of its own: a proof reads a whole data directory, which would delay
the server's answers.
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import structlog
from rich.console import Console

from streamd.cli.erasing import PURGE_WAITS, copies_elsewhere, purge_letters
from streamd.cli.proof import prove_erasure
from streamd.clock import SystemClock
from streamd.errors import DiskError, KafkaError, SettingsError, StoreError, StreamdError
from streamd.eventlog.key_search import KeyRow
from streamd.eventlog.reader import DeletesReader, LogReader
from streamd.eventlog.upkeep.holds import ask_to_compact, asked_to_compact, read_compacted
from streamd.events import Key, split_key
from streamd.ingest.delete_events import SentDelete, send_deletes, topic_for_deletes
from streamd.replica.models.state import ModelsState
from streamd.replica.models.topic import KafkaModelsTopic
from streamd.replica.move_requests import ask_everywhere, compaction_wait
from streamd.settings.loading import Settings
from streamd.store.compaction_waits import has_store_to_clean, store_wait_reason, wait_reason
from streamd.store.deleted_keys import Found
from streamd.store.erasure import Erasure, log_role_of, rows_of
from streamd.store.erasure_requests import (
    ENDS,
    FOLDER,
    ErasureRequest,
    ErasureRequests,
    ErasureState,
    SentNode,
)
from streamd.telemetry.heartbeat import read_beat
from streamd.telemetry.progress import ProgressLine

logger = structlog.get_logger()
changed = msgspec.structs.replace
LOOK_SECONDS = 1.0
"""Pause between two rounds over the open requests."""
PROVE_AGAIN_SECONDS = 3600.0
"""Time after a compaction in which a replica repeats a proof that found keys: its log, the store
and the changelog may not have the leader's compaction yet."""
FIRST_PAUSE_SECONDS = 5.0
"""Pause before the second proof; each further pause is twice as long."""


class ErasureWork:
    """Advances all open requests of a data directory to erase nodes. Owner: one process; the server
    that starts it holds the lock of the requests' folder."""

    def __init__(self, data_dir: Path) -> None:
        self._requests = ErasureRequests(data_dir)
        self._requests.sweep()
        self._log: LogReader | None = None
        self._topic: KafkaModelsTopic | None = None
        self._models = ModelsState()
        self._pause = FIRST_PAUSE_SECONDS
        self._prove_at = 0.0
        """Monotonic time before which no proof starts."""

    def run(self, settings: Settings) -> None:
        """Work until no request is open. Raises: StreamdError."""
        try:
            while self.step(settings):
                time.sleep(LOOK_SECONDS)
        finally:
            self._close_topic()

    def step(self, settings: Settings) -> bool:
        """Advance each open request as far as is possible now.

        1. Deletes: send them, and check whether the log has them. A request for compaction covers
           only the deletes in the log.
        2. Compaction: request it, and check whether log, store and changelog are rid of the deleted
           data. Before that, a proof would find the keys.
        3. Proof: remove the local dead letters that contain the keys of all requests that have
           reached this step, and search for these keys, in one pass.

        A request is written durably after each change, so that a restarted process resumes at its
        step.
        Returns: whether a request is open. Raises: StreamdError if the directory cannot be read.
        """
        requests = self._requests.open()
        if not requests:
            return False
        log = self._open_log(settings.data_dir)
        # 1 and 2. Deletes and compaction, each request by itself.
        for one in requests:
            try:
                self._move_on(settings, log, one, requests)
            except (KafkaError, StoreError) as error:
                # The next round tries an unreachable broker or store again.
                self._close_topic()
                if (current := self._requests.read(one.id)) is not None:
                    self._note(current, str(error))
        # 3. Proof, of all requests together.
        if time.monotonic() >= self._prove_at:
            ready = [one for one in self._requests.open() if one.state == "proving"]
            try:
                self._prove(settings, ready)
            except (KafkaError, StoreError, DiskError) as error:
                self._prove_later(ready, str(error))
        return True

    def _open_log(self, data_dir: Path) -> LogReader:
        """Return a current reader of the log, a new one if the log got further sets. Raises:
        StreamdError if there is no log."""
        if self._log is None or self._log.superseded:
            self._log = DeletesReader.open(data_dir, keep_keys=False)
        if self._log is None:
            raise StreamdError(f"{data_dir} holds no log.", "start ingest.")
        self._log.refresh()
        return self._log

    def _note(self, one: ErasureRequest, reason: str) -> None:
        """Write the reason why a request waits, if it has changed."""
        if one.waits_for != reason:
            self._requests.write(changed(one, waits_for=reason))

    def _end(self, one: ErasureRequest, state: ErasureState, reason: str = "") -> None:
        """End a request: write it durably, and log it without its keys."""
        assert state in ENDS
        # `write` removes the keys of an ended request.
        ended = changed(one, state=state, waits_for=reason, ended_at=time.time())
        self._requests.write(ended)
        level = logger.info if state == "done" else logger.error
        level("erasure_ended", request=one.id, state=state, found=len(one.found), why=reason)

    def _move_on(
        self,
        settings: Settings,
        log: LogReader,
        one: ErasureRequest,
        requests: Sequence[ErasureRequest],
    ) -> None:
        """Advance a request up to its proof. requests: all open ones. Raises: KafkaError,
        StoreError."""
        if one.rows is None:
            keys = one.typed_keys
            rows = rows_of(log, keys)
            one = changed(
                one,
                rows=[(keys.index(row.key), row.node) for row in rows],
                num_unknown=len(set(keys) - {row.key for row in rows}),
            )
            self._requests.write(one)
        if one.state == "deleting":
            one = self._delete(settings, log, one, requests)
        if one.state == "compacting":
            self._compact(settings, one)

    # Step 1: the deletes

    def _delete(
        self,
        settings: Settings,
        log: LogReader,
        one: ErasureRequest,
        requests: Sequence[ErasureRequest],
    ) -> ErasureRequest:
        """Send the deletes that no request has sent yet, and check whether all are in the log.
        Raises: KafkaError."""
        keys = one.typed_keys
        erasure = Erasure(log, [KeyRow(keys[i], node, 0) for i, node in one.rows or ()])
        if not (live := erasure.live_rows()):
            return self._begin_compaction(log, one)

        # Requests for the same node share its delete: the log would refuse a second one.
        sent = {s.node: s for other in (*requests, one) for s in other.sent}
        if unsent := [row for row in live if row.node not in sent]:
            try:
                new = _send(settings, log, one, unsent)
            except SettingsError as error:
                self._end(one, "failed", str(error))
                return one
            one = changed(one, sent=[*one.sent, *new])
            self._requests.write(one)
            sent |= {s.node: s for s in new}

        # Check again after the position was read: the delete may have arrived in between.
        waiting = [_delete_of(row, sent[row.node]) for row in live]
        refused = any(map(erasure.is_read, waiting)) and erasure.live_rows() == live
        role = log_role_of(settings.log.member, settings.log.name)
        reason = erasure.wait_reason(waiting, role)
        if refused:
            self._end(one, "failed", reason)
        else:
            self._note(one, reason)
        return one

    def _begin_compaction(self, log: LogReader, one: ErasureRequest) -> ErasureRequest:
        """Continue with compaction, or with the proof if the log holds none of the keys."""
        # Compact up to the log's newest delete, which is at or after those of this request.
        one = changed(
            one,
            state="compacting" if one.rows else "proving",
            event=log.deletions.newest_place,
            seq=log.state.seq,
            waits_for="",
        )
        self._requests.write(one)
        return one

    # Step 2: compaction

    def _compact(self, settings: Settings, one: ErasureRequest) -> None:
        """Request compaction; continue with the proof once log, store and changelog are rid of the
        deleted data. Raises: KafkaError, StoreError."""
        if not one.compacted_at:
            reason = self._everywhere(settings, one) if settings.log.name else _here(settings, one)
            if reason is None:
                return
            if reason:
                self._note(one, reason)
                return
            one = changed(one, compacted_at=time.time())
            self._requests.write(one)
        if has_store_to_clean(settings.data_dir, settings.log) and (
            reason := store_wait_reason(settings.data_dir)
        ):
            self._note(one, f"store and changelog may still hold it: waiting for {reason}")
            return
        self._requests.write(changed(one, state="proving", waits_for=""))

    def _everywhere(self, settings: Settings, one: ErasureRequest) -> str | None:
        """The reason why the compaction of a log of several machines waits, "" if it is done.
        Raises: KafkaError.

        Returns: None if this call has written the request: it has ended, or compaction was
        requested.
        """
        if self._topic is None:
            self._topic = KafkaModelsTopic(settings.kafka, settings.log.name)
        self._models.take(self._topic.read(0.1))
        state = self._models
        if reason := state.refused.get(one.compaction):
            self._end(one, "failed", f"the trainer refused the compaction: {reason}")
            return None
        is_known = state.is_done(one.compaction) or one.compaction in state.open
        if not is_known:
            # The trainer was not asked yet, or the topic was created again since.
            request = ask_everywhere(settings, one.event, self._topic)
            self._requests.write(changed(one, compaction=request, waits_for="asking the trainer"))
            return None
        return compaction_wait(state, one.compaction)

    def _close_topic(self) -> None:
        if self._topic is not None:
            self._topic.close()
            self._topic = None
        self._models = ModelsState()

    # Step 3: the proof

    def _prove(self, settings: Settings, ready: Sequence[ErasureRequest]) -> None:
        """Prove several requests in one pass, because a pass reads everything that streamd has
        written. Raises: KafkaError, StoreError."""
        if not ready:
            return
        owner: list[tuple[int, int]] = []
        keys: list[Key] = []
        for index, one in enumerate(ready):
            for number, key in enumerate(one.typed_keys):
                owner.append((index, number))
                keys.append(key)
        # Search only once for a key that several requests share.
        first: dict[Key, int] = {}
        for key in keys:
            first.setdefault(key, len(first))
        found: dict[int, list[str]] = {}
        # Compaction removes only the letters of keys that the log still holds.
        if purge_letters(settings, first, time.monotonic() + LOOK_SECONDS) is None:
            self._prove_later(ready, PURGE_WAITS)
            return
        texts = [str(split_key(key)[1]) for key in first]
        _, summary = prove_erasure(
            settings,
            texts,
            [[key] for key in first],
            ProgressLine(Console(quiet=True), "proving"),
            partial(_collect, found),
            # Skip the requests themselves, which contain keys until they end.
            FOLDER,
        )
        of_request: list[list[tuple[int, str]]] = [[] for _ in ready]
        for (index, number), key in zip(owner, keys, strict=True):
            of_request[index] += [(number + 1, where) for where in found.get(first[key], ())]
        again = []
        proof = f"{summary}. {copies_elsewhere(settings, texts)}"
        for one, places in zip(ready, of_request, strict=True):
            proved = changed(one, found=places, proof=proof)
            if not places:
                self._end(proved, "done")
            elif _may_follow(settings, one):
                again.append(one)
            else:
                self._end(proved, "found", "a key is left, or came back with new events")
        if again:
            self._prove_later(
                again, "this machine, store or changelog may lack the leader's compaction"
            )

    def _prove_later(self, requests: Sequence[ErasureRequest], reason: str) -> None:
        self._prove_at = time.monotonic() + self._pause
        self._pause *= 2
        for one in requests:
            self._note(one, reason)


def _delete_of(row: KeyRow, sent: SentNode) -> SentDelete:
    return SentDelete(row.key, sent.topic, sent.partition, sent.offset)


def _collect(found: dict[int, list[str]], one: Found) -> None:
    found.setdefault(one.key, []).append(one.where)


def _send(
    settings: Settings, log: LogReader, one: ErasureRequest, rows: Sequence[KeyRow]
) -> list[SentNode]:
    """Send deletes of nodes. Raises: KafkaError; SettingsError if a topic must be named."""
    topic = topic_for_deletes(settings.kafka, settings.sources, one.topic)
    # A delete names a key, so it is sent once even if the table holds the key twice.
    names = log.state.schema.node_set_names
    sent = send_deletes(settings.kafka, topic, [row.key for row in rows], names)
    return [
        SentNode(row.node, at.topic, at.partition, at.offset)
        for row, at in zip(rows, sent, strict=True)
    ]


def _here(settings: Settings, one: ErasureRequest) -> str:
    """The reason why the compaction of this machine's log waits, "" if it is done."""
    data_dir = settings.data_dir
    done = read_compacted(data_dir)
    if done is not None and done.seq >= one.seq and done.edge >= one.event:
        return ""
    # Request it again if the open request is gone, or covers fewer deletes than needed.
    asked = asked_to_compact(data_dir)
    if asked is None or asked < one.event:
        ask_to_compact(data_dir, one.event)
    beat = read_beat(data_dir, "ingest")
    if beat is None or not beat.alive:
        return "waiting for ingest, which compacts and does not run here"
    width_us = int(settings.windows.width_seconds * 1_000_000)
    return wait_reason(data_dir, one.event, width_us, SystemClock().now_us())


def _may_follow(settings: Settings, one: ErasureRequest) -> bool:
    """Whether a key that was found may soon be gone, because a replica still follows the leader."""
    log = settings.log
    is_replica = bool(log.name) and log.member == "replica"
    return is_replica and time.time() < one.compacted_at + PROVE_AGAIN_SECONDS

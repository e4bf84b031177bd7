"""The trainer's side of the models topic: uploads checkpoints, appends missing records to the
topic, and executes requests of other machines.

The registry on disk is the queue: after a crash or an outage, the next step compares it with the
topic and finds the difference, so that nothing is sent twice and nothing is lost. The topic gets a
window only once the store has a checkpoint that includes it, so a trainer that resumes from the
newest checkpoint repeats no window that a replica shows. Servers on the trainer's machine follow
the topic too.
"""

import contextlib
import time
from collections.abc import Callable

import structlog
from crc32c import crc32c

from streamd.errors import KafkaError, StoreError, VersionError
from streamd.eventlog import line_outbox as outbox
from streamd.eventlog.layout import WINDOWS
from streamd.eventlog.learned_lines import LearnedLines
from streamd.registry import Registry
from streamd.registry.journal import Move
from streamd.registry.manifest import Manifest
from streamd.registry.registry import promote_again, read_manifests
from streamd.replica.models import records
from streamd.replica.models.checkpoint_marker import Stored
from streamd.replica.models.compactions import Compactions
from streamd.replica.models.hold import HandoverHold
from streamd.replica.models.topic import ModelsTopic
from streamd.replica.models.trainer_term import TrainerTerm
from streamd.replica.models.trainer_topic import TrainerTopic
from streamd.settings.paths import Paths
from streamd.store import checkpoints
from streamd.store import versions as stored
from streamd.store.file_set import StoredFile
from streamd.store.objects import Store
from streamd.store.versions import StoredVersion
from streamd.telemetry import replica_metrics
from streamd.training.handover import VERSIONS, Handover
from streamd.windows.history import FILE as HISTORY

logger = structlog.get_logger()
REQUEST_SECONDS = 3600.0
"""Age at which a request is refused: by then the requester has given up."""


class ModelsPublisher:
    """Brings the models topic in line with the trainer's registry. Owner: one thread.

    state: of the topic.
    """

    def __init__(
        self,
        paths: Paths,
        lease_seconds: float,
        registry: Registry,
        topic: ModelsTopic,
        store: Store,
        trainer_term: TrainerTerm,
        on_step: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Args: paths: of the trainer. lease_seconds: longest wait of compaction for a member that
        does not answer. trainer_term: of this trainer. on_step: called with the name of each step
        as it begins; tests stop there. now: wall time, seconds."""
        self._history = paths.learned / HISTORY
        self._log_dir = paths.log
        self._windows = LearnedLines(paths.log, WINDOWS, self._history)
        self._registry = registry
        self._topic = TrainerTopic(topic, registry, trainer_term)
        self._store = store
        self._term = trainer_term
        self._hold = HandoverHold(paths.log)
        self._compactions = Compactions(
            paths.log, lease_seconds, self._topic, trainer_term, on_step=on_step, now=now
        )
        self._on_step = on_step
        self._now = now
        self._settled: tuple[list[tuple[str, int, int]], int] | None = None
        """Files of the registry, and number of the topic's newest record, when nothing was left to
        send."""
        self._swept_for: object = None
        """Versions and checkpoints that were needed when the store was last swept."""
        self._moves: list[Move] = []
        self._moves_stamp: tuple[int, int] | None = None
        self.state = self._topic.state

    def step(self, wait_seconds: float = 0.0) -> None:
        """Read the topic to its end and send what it lacks, in this order:

        1. Read the topic. A later trainer's claim ends the step before anything is sent.
        2. Renew the retention lease of the newest checkpoint. Without it the log could drop events
           from which that checkpoint resumes.
        3. Execute requests of other machines, each once: its id is in the journal before the topic
           has the move, so a kill between the two does not repeat it.
        4. Store the newest checkpoint, and append its record. If versions came first, a trainer
           that resumes from the previous checkpoint would repeat windows that replicas show.
        5. Append versions, and then the moves that name them: a replica that reads a move without
           its version cannot follow it.
        6. Put the records of windows that the stored checkpoint has into the log, and append the
           names of the versions that are kept.
        7. Remove the objects of the store that no record of the topic names. Before step 6 the
           topic would still name the versions that the trainer dropped.

        wait_seconds: how long to wait for a record if there is none.
        Raises: FencedError if a later trainer has claimed; KafkaError, StoreError: then another
        step continues from there.
        """
        # Steps 1 to 3.
        self._topic.read(wait_seconds)
        self._hold.keep(self.state)
        self._do_requests()
        self._compactions.step()
        here = self._file_stamps()
        if (here, self.state.number) == self._settled and not self._term.handovers.is_waiting:
            replica_metrics.models_published.set(self._now())
            return

        # Steps 4 and 5. Manual moves need no checkpoint. Changes from here on are for the next
        # step.
        replica_metrics.models_waiting.set(self._num_waiting())
        try:
            self._store_checkpoint()
        except StoreError:
            self._send_moves(by_hand=True)
            raise
        self._send_versions()
        self._send_moves()

        # Steps 6 and 7.
        windows_sent = self._send_windows()
        self._send_kept_names()
        self._sweep_store()
        replica_metrics.models_waiting.set(self._num_waiting())
        self._settled = (here, self.state.number) if windows_sent else None
        replica_metrics.models_published.set(self._now())

    def _file_stamps(self) -> list[tuple[str, int, int]]:
        """The files of the registry and the history, as (name, modification time, size): they show
        any change."""
        folder = self._registry.folder
        paths = [self._history, folder / "journal.jsonl"]
        paths += [path for path in folder.iterdir() if not path.name.startswith(".")]
        seen = []
        for path in sorted(paths):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                seen.append((path.name, status.st_mtime_ns, status.st_size))
        return seen

    def close(self) -> None:
        """Close the connections."""
        self._topic.close()

    # Requests of other machines

    def _do_requests(self) -> None:
        """Promote and roll back for other machines, each request once, with the checks of a manual
        move."""
        done = {move.request for move in self._local_moves()}
        for request in list(self.state.open.values()):
            if request.action == "compact" or request.id in done:
                continue
            self._on_step("request")
            who = f"{request.who}@{request.member}"
            try:
                if self._now() - request.at > REQUEST_SECONDS:
                    raise VersionError("The request is more than an hour old.", "ask again.")
                if request.action == "promote":
                    self._registry.promote(request.version, who, request.why, request.id)
                else:
                    self._registry.rollback(who, request.why, request.id)
            except VersionError as error:
                self._topic.refuse(request.id, str(error))

    # The newest checkpoint

    def _store_checkpoint(self) -> None:
        """Store the trainer's newest state if it is not stored yet, and then append its record."""
        handover = self._term.handovers.begin()
        if handover is None:
            return
        begun = time.monotonic()
        self._on_step("upload")
        versions = [self._upload_version(handover, name) for name in handover.versions]
        self._on_step("checkpoint")
        done = checkpoints.upload_checkpoint(
            handover.local,
            self.state.term,
            versions,
            self._store,
            self._term.newest,
            self._term.index,
        )

        # The marker first: after a kill, a directory must know every checkpoint that the topic has.
        self._on_step("mark")
        entry = Stored(
            name=done.name,
            num_moves=len(handover.moves()),
            history_bytes=handover.num_history_bytes,
            versions={v.name: crc32c(v.manifest.encode()) for v in versions},
        )
        self._term.note(entry, self.state)
        self._on_step("checkpointed")
        self._topic.append(
            [
                lambda number: records.Checkpointed(
                    term=self.state.term,
                    number=number,
                    name=done.name,
                    size=len(done.data),
                    crc=crc32c(done.data),
                    edge=handover.local.edge,
                    held=handover.local.held,
                    purged=handover.local.purged_before,
                )
            ]
        )
        if self.state.checkpoints[-1].name != done.name:
            # A record of an earlier try arrived late and has taken this number.
            raise KafkaError(
                "A checkpoint's record was ignored.", "none is needed: it is sent again."
            )
        self._hold.keep(self.state)
        self._term.newest = done.stored
        self._term.handovers.end()
        replica_metrics.checkpoint_stored.set(self._now())
        replica_metrics.checkpoint_bytes.inc(done.num_bytes)
        logger.info(
            "checkpoint_stored",
            edge=handover.local.edge,
            objects=done.objects,
            num_bytes=done.num_bytes,
            seconds=round(time.monotonic() - begun, 3),
        )

    def _upload_version(self, handover: Handover, name: str) -> StoredVersion:
        """A version of a handover, after its files are uploaded. Raises: StoreError."""
        folder = handover.local.folder / VERSIONS / name
        text = (folder / stored.MANIFEST).read_text()
        for known in (self.state.versions.get(name), self._term.uploaded.get(name)):
            if known is not None and known.manifest == text:
                break
        else:
            known = stored.upload_version(folder, self._store, self._stored_files())
        self._term.uploaded[name] = known
        # Files of memory that the trainer has dropped are left out.
        files = [file for file in known.files if (folder / file.path).exists()]
        return StoredVersion(name=name, manifest=text, files=files)

    # Records that the topic lacks

    def _send_versions(self) -> None:
        """Send the versions that the newest checkpoint has."""
        there = self._term.marked_entry(self.state).versions
        for manifest in self._unsent_versions():
            version = self._term.uploaded.get(manifest.name)
            text = self._manifest_text(manifest.name)
            if version is None or version.manifest != text:
                continue
            if there.get(version.name) != crc32c(version.manifest.encode()):
                continue
            self._on_step("version")
            self._topic.append(
                [
                    lambda number, version=version: records.Version(  # type: ignore[misc]
                        term=self.state.term, number=number, version=version
                    )
                ]
            )
            logger.info("version_sent", version=version.name)

    def _unsent_versions(self) -> list[Manifest]:
        """Versions that the topic lacks or has with another manifest, oldest first."""
        made = sorted(read_manifests(self._registry), key=lambda m: m.created)
        return [m for m in made if not self._is_sent(m.name)]

    def _is_sent(self, name: str) -> bool:
        known = self.state.versions.get(name)
        text = self._manifest_text(name)
        return text is None or (known is not None and known.manifest == text)

    def _manifest_text(self, name: str) -> str | None:
        """The manifest of a version here, None if the trainer dropped it."""
        try:
            return (self._registry.folder / name / stored.MANIFEST).read_text()
        except FileNotFoundError:
            return None

    def _stored_files(self) -> dict[tuple[str, int], StoredFile]:
        """The files in the store, by (checksum, bytes)."""
        found = {}
        for version in (*self.state.versions.values(), *self._term.uploaded.values()):
            checksums = version.checksums
            for file in version.files:
                if checksum := checksums.get(file.path):
                    found[checksum, file.size] = file
        return found

    def _send_moves(self, by_hand: bool = False) -> None:
        """Send the moves that the topic lacks, each after the version that it makes champion.

        by_hand: whether to send manual moves before moves of the trainer that still wait for a
        checkpoint. Such moves of the trainer are then older than the champion, and never sent.
        """
        moves = self._local_moves()
        unsent = self._unsent_moves()
        if moves and not unsent and self.state.moves and self.state.moves[-1] not in set(moves):
            # This directory is older than the topic, as after a restore: its champion counts.
            logger.warning("models_topic_ahead", champion_there=self.state.champion)
            why = "the trainer continues from an older state than the models topic has"
            unsent = [promote_again(self._registry, why)]
        ready = []
        stored_moves = set(moves[: self._term.marked_entry(self.state).num_moves])
        for move in unsent:
            # A manual move does not wait for a checkpoint.
            if move not in stored_moves and move.who == "trainer":
                if by_hand:
                    continue
                break
            here = [n for n in (move.champion, move.shadow) if (self._registry.folder / n).exists()]
            if not all(self._is_sent(name) for name in here):
                break
            ready.append(move)
        if ready:
            self._on_step("move")
        self._topic.append(
            lambda number, move=move: records.Moved(  # type: ignore[misc]
                term=self.state.term, number=number, line=move.line().decode().rstrip("\n")
            )
            for move in ready
        )

    def _unsent_moves(self) -> list[Move]:
        """The moves of the registry after the last one that the topic has."""
        moves = self._local_moves()
        sent = set(self.state.moves)
        newest = max((i for i, move in enumerate(moves) if move in sent), default=-1)
        return moves[newest + 1 :]

    def _local_moves(self) -> list[Move]:
        """All moves of the registry's journal; the file is read again only after a change."""
        try:
            status = (self._registry.folder / "journal.jsonl").stat()
        except FileNotFoundError:
            return []
        stamp = (status.st_ino, status.st_size)
        if stamp != self._moves_stamp:
            self._moves = self._registry.journal.moves()
            self._moves_stamp = stamp
        return self._moves

    def _send_windows(self) -> bool:
        """Put the records of windows that the log lacks into the outbox of ingest here. Returns:
        whether the log has all."""
        unsent = self._unsent_windows()
        if unsent and outbox.is_empty(self._log_dir):
            self._on_step("window")
            with self._registry.journal.lock:
                self._windows.append_soon(unsent)
            unsent = self._unsent_windows()
        return not unsent

    def _unsent_windows(self) -> list[bytes]:
        """The lines of the history that the newest checkpoint has and the log lacks."""
        try:
            counted = self._term.marked_entry(self.state).history_bytes
            data = self._history.read_bytes()[:counted]
        except FileNotFoundError:
            return []
        return self._windows.missing(data.splitlines(keepends=True))

    def _send_kept_names(self) -> None:
        """Append the names of the versions that are kept here, once all of them are on the
        topic."""
        here = {m.name: self._registry.is_servable(m) for m in read_manifests(self._registry)}
        there = {name: name in self.state.with_memory for name in self.state.versions}
        if not here.keys() <= there.keys() or here in (there, self.state.kept_as):
            return
        self._on_step("kept")
        self._topic.append(
            [lambda number: records.Kept(term=self.state.term, number=number, versions=here)]
        )

    def _num_waiting(self) -> int:
        """Approximate number of records to send."""
        unsent = len(self._unsent_versions()) + len(self._unsent_moves())
        return unsent + len(self._unsent_windows()) + self._term.handovers.is_waiting

    def _sweep_store(self) -> None:
        """Remove from the store the versions and checkpoints that no machine needs."""
        if self._swept_for == self._names_to_keep():
            return
        self._on_step("sweep")
        # A later trainer claims before it stores anything. So list first, then read the topic,
        # which raises FencedError after such a claim.
        listed = self._store.sizes(stored.FOLDER)
        old = self._store.sizes(checkpoints.FOLDER)
        self._topic.read()
        versions, names = self._names_to_keep()
        objects = {stored.object_of(name) for name in versions}
        self._store.remove(name for name in listed if name not in objects)
        self._store.remove(name for name in old if name not in names)
        # An earlier trainer that was paused may have removed an object that is needed again.
        for name in versions:
            if stored.object_of(name) not in listed:
                self._store.put(
                    stored.object_of(name), stored.KIND.encode(self.state.versions[name])
                )
        self._swept_for = versions, names

    def _names_to_keep(self) -> tuple[set[str], set[str]]:
        """Names of versions, and of the objects of checkpoints, that must stay."""
        newest = self.state.checkpoints[-1:]
        # The older of two checkpoints may contain deleted data.
        least = min([self.state.purged_event, *(one.purged for one in newest)])
        kept = {one.name for one in self.state.checkpoints if one.purged >= least}
        return set(self.state.versions), kept | {one.name for one in newest}

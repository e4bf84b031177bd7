"""The trainer's side of the models topic: what the registry has and the topic lacks is sent, and
what others ask for is done.

The registry on disk is the queue: a crash or an outage anywhere leaves a difference, which the next
step finds by comparing the two, so that nothing is sent twice and nothing is lost.
"""

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from streamd.errors import CorruptionError, VersionError
from streamd.registry import Registry
from streamd.registry.journal import Move
from streamd.registry.manifest import Manifest
from streamd.registry.registry import read_manifests
from streamd.replica import models_records as records
from streamd.replica.models_state import ModelsState
from streamd.replica.models_topic import ModelsTopic
from streamd.segments.holds import ask_to_compact, asked_to_compact
from streamd.segments.tail import events_shown
from streamd.settings import Settings
from streamd.storage import DISK, link_or_copy
from streamd.store import versions as stored
from streamd.store.manifest import StoredFile
from streamd.store.store import Store
from streamd.telemetry import metrics
from streamd.windows.history import FILE as HISTORY

logger = structlog.get_logger()
TERM = 1
"""Term of the configured trainer."""
LINKS = "train/.publishing"
"""Folder with links to the version that is sent: the trainer drops versions meanwhile."""
REQUEST_SECONDS = 3600.0
"""Age at which a request is refused: who asked has long looked for another way."""
BEYOND_SECONDS = 60.0
"""Age at which a compaction is refused that names an event beyond the log's end. A replica may show
a commit some milliseconds before this machine does."""


class ModelsPublisher:
    """Brings the models topic in line with the trainer's registry. Owner: one thread.

    state: what the topic says.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        topic: ModelsTopic,
        store: Store,
        counted: Callable[[], int],
        log_dir: Path,
        on_step: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Args: settings: with the directory of what is learned. log_dir: data directory of the
        log, where compaction is asked for. counted: returns the bytes of the history that a
        checkpoint follows. on_step: called with the name of each step as it begins; tests stop
        there. now: wall time, seconds.
        """
        self._settings = settings
        self._registry = registry
        self._topic = topic
        self._store = store
        self._counted = counted
        self._log_dir = log_dir
        self._on_step = on_step
        self._now = now
        self._links = settings.data_dir / LINKS
        self._settled: tuple[list[tuple[str, int, int]], int] | None = None
        """What was there, and the topic's newest number, when nothing was left to send."""
        self._swept_for: set[str] | None = None
        """Versions by which the store was swept last."""
        self._moves: list[Move] = []
        self._moves_stamp: tuple[int, int] | None = None
        self.state = ModelsState()

    def step(self, wait_seconds: float = 0.0) -> None:
        """Read the topic to its end, do what others ask for, and send what the topic lacks.

        wait_seconds: how long to wait for a record where there is none.
        Raises: KafkaError, StoreError: then another step goes on where this one stopped.
        """
        self.state.take(self._topic.read(wait_seconds))
        self._do_requests()
        self._go_on_with_compaction()
        here = self._seen()
        if (here, self.state.number) == self._settled:
            metrics.models_published.set(self._now())
            return

        # Versions before the moves that name them. What comes meanwhile is for the next step.
        metrics.models_waiting.set(self._num_waiting())
        self._send_versions()
        self._send_moves()
        self._send_windows()
        self._send_kept()
        self._sweep_store()
        metrics.models_waiting.set(self._num_waiting())
        self._settled = here, self.state.number
        metrics.models_published.set(self._now())

    def _seen(self) -> list[tuple[str, int, int]]:
        """What tells whether anything of the registry or the history has changed."""
        folder = self._registry.folder
        paths = [self._settings.data_dir / HISTORY, folder / "journal.jsonl"]
        paths += [path for path in folder.iterdir() if not path.name.startswith(".")]
        seen = [("", self._counted(), 0)]
        for path in sorted(paths):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                seen.append((path.name, status.st_mtime_ns, status.st_size))
        return seen

    def close(self) -> None:
        """Close the connections."""
        self._topic.close()

    def _append(self, made: Iterable[Callable[[int], records.Known]]) -> None:
        """Append records of the trainer, each made with its number, and take them as all others
        do: from the topic."""
        number = self.state.number
        for make in made:
            number += 1
            self._topic.append(records.encode(make(number)))
        if number != self.state.number:
            self.state.take(self._topic.read(0.0))

    # What others ask for

    def _do_requests(self) -> None:
        """Promote and roll back as others ask, each once, with the checks as by hand."""
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
                self._refuse(request.id, str(error))

    def _refuse(self, request: str, reason: str) -> None:
        logger.warning("request_refused", request=request, reason=reason)
        self._append(
            [
                lambda number: records.Refused(
                    term=TERM, number=number, request=request, reason=reason[: records.MAX_TEXT]
                )
            ]
        )

    # What the topic lacks

    def _send_versions(self) -> None:
        for manifest in self._unsent_versions():
            self._on_step("links")
            folder = self._linked(manifest.name)
            if folder is None:
                continue
            try:
                self._on_step("upload")
                version = stored.upload_version(folder, self._store, self._stored_files())
            except (FileNotFoundError, CorruptionError) as error:
                # Somebody removed it by hand: the next step looks again.
                logger.warning("version_not_sent", version=manifest.name, error=str(error))
                continue
            self._on_step("version")
            self._append(
                [
                    lambda number, version=version: records.Version(  # type: ignore[misc]
                        term=TERM, number=number, version=version
                    )
                ]
            )
            DISK.remove_folder(self._links)
            logger.info("version_sent", version=manifest.name)

    def _unsent_versions(self) -> list[Manifest]:
        """Versions that are not on the topic as they are here, the one made first first."""
        made = sorted(read_manifests(self._registry), key=lambda m: m.created)
        return [m for m in made if not self._is_sent(m.name)]

    def _is_sent(self, name: str) -> bool:
        known = self.state.versions.get(name)
        try:
            text = (self._registry.folder / name / stored.MANIFEST).read_text()
        except FileNotFoundError:
            return True
        return known is not None and known.manifest == text

    def _linked(self, name: str) -> Path | None:
        """Link to the files of a version as they are at one moment. Returns: the folder, None where
        it was dropped meanwhile."""
        folder = self._links / name
        DISK.remove_folder(self._links)
        folder.mkdir(parents=True)
        with self._registry.journal.lock:
            own = self._registry.folder / name
            if not own.exists():
                return None
            for path in own.iterdir():
                link_or_copy(path, folder / path.name)
        return folder

    def _stored_files(self) -> dict[tuple[str, int], StoredFile]:
        """Files that are in the store, by checksum and bytes."""
        found = {}
        for version in self.state.versions.values():
            checksums = version.checksums
            for file in version.files:
                if checksum := checksums.get(file.path):
                    found[checksum, file.size] = file
        return found

    def _send_moves(self) -> None:
        """Send the moves that the topic lacks, each behind the version that it makes champion."""
        moves = self._local_moves()
        sent = set(self.state.moves)
        unsent = [move for move in moves if move not in sent]
        if moves and not unsent and self.state.moves and self.state.moves[-1] not in set(moves):
            # This directory is older than the topic, as after a restore: what serves here counts.
            logger.warning("models_topic_ahead", champion_there=self.state.champion)
            why = "the trainer goes on from an older state than the models topic has"
            last = moves[-1]
            unsent = [
                self._registry.journal.move("promote", last.champion, "trainer", why, None, "")
            ]
        ready = []
        for move in unsent:
            here = [n for n in (move.champion, move.shadow) if (self._registry.folder / n).exists()]
            if not all(self._is_sent(name) for name in here):
                break
            ready.append(move)
        if ready:
            self._on_step("move")
        self._append(
            lambda number, move=move: records.Moved(  # type: ignore[misc]
                term=TERM, number=number, line=move.line().decode().rstrip("\n")
            )
            for move in ready
        )

    def _local_moves(self) -> list[Move]:
        """All moves of the registry's journal; the file is read again only where it changed."""
        try:
            status = (self._registry.folder / "journal.jsonl").stat()
        except FileNotFoundError:
            return []
        stamp = (status.st_ino, status.st_size)
        if stamp != self._moves_stamp:
            self._moves = self._registry.journal.moves()
            self._moves_stamp = stamp
        return self._moves

    def _send_windows(self) -> None:
        unsent = self._unsent_windows()
        if unsent:
            self._on_step("window")
        self._append(
            lambda number, index=index, line=line: records.Scored(  # type: ignore[misc]
                term=TERM, number=number, index=index, line=line
            )
            for index, line in unsent
        )

    def _unsent_windows(self) -> list[tuple[int, str]]:
        """The lines of the history that count and that the topic lacks, each with its place."""
        try:
            data = (self._settings.data_dir / HISTORY).read_bytes()[: self._counted()]
        except FileNotFoundError:
            return []
        lines = data.decode(errors="replace").split("\n")[:-1]
        there = self.state.windows
        same = 0
        while same < min(len(lines), len(there)) and lines[same] == there[same]:
            same += 1
        return list(enumerate(lines))[same:]

    def _send_kept(self) -> None:
        """Say which versions are kept here, once all of them are on the topic."""
        here = {m.name: self._registry.is_servable(m) for m in read_manifests(self._registry)}
        there = {name: name in self.state.with_memory for name in self.state.versions}
        if not here.keys() <= there.keys() or here in (there, self.state.kept_as):
            return
        self._on_step("kept")
        self._append([lambda number: records.Kept(term=TERM, number=number, versions=here)])

    def _num_waiting(self) -> int:
        """Records that are to be sent, about."""
        sent = set(self.state.moves)
        unsent = sum(move not in sent for move in self._local_moves())
        return len(self._unsent_versions()) + unsent + len(self._unsent_windows())

    # Compaction over machines

    def _go_on_with_compaction(self) -> None:
        """Let compaction go on here once every member has answered, or its lease ran out; say so,
        and when it is done."""
        requests = self.state.compactions()
        num_events = events_shown(self._log_dir) if requests else 0
        for request in requests:
            if request.id in self.state.released:
                # The request's file is removed once all that was deleted is gone.
                if asked_to_compact(self._log_dir) is None:
                    self._on_step("compacted")
                    self._append([self._compacted(request.id)])
                continue
            # Nothing of the log will ever be past such an event, and all compactions would wait.
            if request.event > num_events:
                if self._now() - request.at > BEYOND_SECONDS:
                    self._refuse(
                        request.id,
                        f"Event {request.event:,} is beyond the log's end, {num_events:,}.",
                    )
                continue
            late = sorted(self.state.members.keys() - self.state.answers.get(request.id, set()))
            lease = self._settings.holds.lease_seconds
            if late and self._now() - request.at < lease:
                continue
            # The file comes first: without it behind the record, compaction would count as done.
            event = max(request.event, asked_to_compact(self._log_dir) or 0)
            ask_to_compact(self._log_dir, event)
            self._on_step("released")
            self._append([self._released(request, late)])
            if late:
                logger.warning("members_left", members=late, lease_seconds=lease)

    def _compacted(self, request: str) -> Callable[[int], records.Known]:
        return lambda number: records.Compacted(term=TERM, number=number, request=request)

    def _released(
        self, request: records.Request, left: list[str]
    ) -> Callable[[int], records.Known]:
        return lambda number: records.Released(
            term=TERM, number=number, request=request.id, event=request.event, left=left
        )

    def _sweep_store(self) -> None:
        """Let go, in the store, of the versions that no machine needs any more."""
        needed = set(self.state.versions)
        if self._swept_for == needed:
            return
        self._on_step("sweep")
        names = {stored.object_of(name) for name in needed}
        self._store.remove(n for n in self._store.sizes(stored.FOLDER) if n not in names)
        self._swept_for = needed

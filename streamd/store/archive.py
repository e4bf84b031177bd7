"""The archive uploads a leader's data directory to the store for new followers, and deletes the
records of the changelog that no follower reads any more.

A round has four steps:

1. Upload the objects that the store lacks.
2. Write a manifest that lists them.
3. Remove old manifests, and the objects that only they list.
4. Delete the changelog's records before an older manifest.

A kill after any step leaves a store from which the newest manifest can be restored, and the next
round continues. In another order, a manifest could list missing objects, or a follower with a
manifest could miss records of the changelog.
"""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from streamd.clock import Clock, SystemClock
from streamd.errors import CorruptionError, ManifestError, SettingsError, StreamdError
from streamd.eventlog.journal.changelog_position import durable_position
from streamd.eventlog.journal.journal import journal_files
from streamd.eventlog.upkeep.holds import CompactionDone, read_compacted
from streamd.roles import folder_of
from streamd.settings.loading import Settings
from streamd.storage import DISK, Disk, write_durably
from streamd.store import manifests
from streamd.store.changelog import Changelog, KafkaChangelog, changelog_topic
from streamd.store.checkpoints import stored_checkpoints
from streamd.store.leases import new_owner
from streamd.store.manifests import Manifest
from streamd.store.objects import Store
from streamd.store.snapshot import held_bytes
from streamd.store.sweep import Sweep
from streamd.store.upload import upload
from streamd.store.versions import FOLDER as VERSIONS
from streamd.telemetry import metrics
from streamd.telemetry.failure_log import LastingFailures
from streamd.telemetry.heartbeat import Heartbeat

logger = structlog.get_logger()
NAME = "archive"
"""Name of the role, and of its folder in `roles/`."""
OWNER = "owner"
"""File in that folder with the name under which the archive holds leases in the store."""
RUNNING = "running"
"""File in that folder that the process locks."""
FORGOTTEN = "forgotten"
"""File in that folder with a commit: that of the newest compaction with no deleted data left in
store and changelog."""
KEEP = 2
"""Number of manifests that stay. Records of the changelog are deleted up to the older one, so that
a follower that has just read it can resume."""
BOOTSTRAP_SECONDS = 7_200.0
"""Maximum time for a new follower to fetch the objects of a manifest. For this long the objects
stay, and so do the changelog's records after the manifest."""
PAUSE_SECONDS = 30.0
"""Minimum interval of rounds: stores bill per request, and a trainer may store a checkpoint every
second."""
SOON_SECONDS = 5.0
"""Minimum interval while deleted data must leave the store, or while uploads of other processes
delay the removal of objects."""
CHECK_SECONDS = 0.5
"""Interval of the checks of the data directory, short compared to PAUSE_SECONDS."""
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0
"""Pauses after failed rounds grow from the first to the longest."""


class Leadership(Protocol):
    """Whether this machine leads the log, which decides whether its archive writes the store."""

    def is_here(self) -> bool:
        """Whether it leads, as far as it knows."""

    def check(self) -> None:
        """Check that no other machine leads. Raises: FencedError, KafkaError."""


class FixedLeadership:
    """The leadership of a machine that the settings make the leader."""

    def is_here(self) -> bool:
        """As in `Leadership`."""
        return True

    def check(self) -> None:
        """As in `Leadership`."""


def open_archive(
    settings: Settings, beat: Heartbeat, stop: threading.Event, lead: Leadership | None = None
) -> "Archive":
    """Open the archive of a leader, or of a standby.

    lead: of a standby. Raises: SettingsError if the log has no store, StoreError if none can be
    opened at its URL.
    """
    log = settings.log
    if not (log.name and log.store) or log.member == "replica":
        raise SettingsError(
            "There is nothing to archive.",
            "set log.name and log.store, and log.member: leader or standby.",
        )
    store = Store(log.store, sleep=_wait(stop))
    archive = Archive(
        settings.data_dir,
        store,
        KafkaChangelog(settings.kafka, changelog_topic(log.name)),
        manifest_seconds=log.manifest_seconds,
        clock=SystemClock(),
        beat=beat,
        stop=stop,
        lead=lead,
    )
    store.before_try = archive.touch_while_sending
    return archive


class Stopped(Exception):
    """The process must end. The objects sent so far stay in the store."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A stored manifest. at: wall time of its write, seconds. offset: its position in the
    changelog, None without a changelog."""

    at: float
    offset: int | None


class Archive:
    """Uploads a leader's data directory to the store, round by round. Owner: the process that has
    the lock of `roles/archive`.

    error: the reason why the newest round failed, "" if it did not.
    """

    def __init__(
        self,
        data_dir: Path,
        store: Store,
        changelog: Changelog | None,
        *,
        manifest_seconds: float,
        clock: Clock,
        beat: Heartbeat,
        stop: threading.Event | None = None,
        lead: Leadership | None = None,
        bootstrap_seconds: float = BOOTSTRAP_SECONDS,
        disk: Disk = DISK,
    ) -> None:
        """changelog: None if the log has none. stop: ends a round early. lead: None if this machine
        always leads."""
        self._data_dir = data_dir
        self._store = store
        self._changelog = changelog
        self._manifest_seconds = manifest_seconds
        self._clock = clock
        self._beat = beat
        self._stop = stop or threading.Event()
        self._lead: Leadership = lead or FixedLeadership()
        self._bootstrap = bootstrap_seconds
        self._disk = disk
        self._folder = folder_of(data_dir, NAME)
        self._owner = self._owners_name()
        self._sweep = Sweep(store, KEEP, bootstrap_seconds)
        # The data directory's `state_stamp` at the last round, and times in monotonic seconds.
        self._seen: object = None
        self._begun_at = self._stored_at = self._cleaned_at = -float("inf")
        self._cleaned = True
        self._trainer_objects: list[str] = []
        """The objects of the trainer in the store that are older than a compaction, as texts."""
        self._retry_at = -float("inf")
        self._failures = 0
        self._lasting = LastingFailures(clock.monotonic)
        self.error = ""
        self._newest: Manifest | None = None
        self._written: dict[str, _Written] | None = None
        """Manifests by name, newest last; None until those in the store were read."""

    def run(self) -> None:
        """Call `step` every CHECK_SECONDS until `stop`."""
        with contextlib.suppress(Stopped):
            while not self._stop.is_set():
                self.step()
                self._stop.wait(CHECK_SECONDS)

    def step(self) -> None:
        """Check the data directory, and do a round if one is due."""
        now = self._clock.monotonic()
        if not self._lead.is_here():
            self._follow()
            return
        self._touch("waiting" if self._failures else "idle")
        if now < self._retry_at or not (self._data_dir / "published").exists():
            return
        try:
            if self._is_due(now):
                self._round(now)
            elif not self._cleaned and now - self._cleaned_at >= SOON_SECONDS:
                self._clean()
            else:
                # Nothing was tried, so a failure lasts.
                return
        except (StreamdError, OSError) as error:
            self._note_failure(error)
        else:
            if self._failures:
                logger.info("archive_recovered", store=self._store.shown, failures=self._failures)
            self._failures = 0
            self._lasting.over()
            self.error = ""
            self._beat.note_failure(NAME, "")
            self._retry_at = -float("inf")

    def _follow(self) -> None:
        """Forget the store's state while another machine leads, since that machine writes the
        store."""
        self._seen = self._newest = self._written = None
        self._stored_at = self._begun_at = -float("inf")
        self._cleaned = True
        self._touch("following")

    def refresh_metrics(self) -> None:
        """Update the metrics that are computed only when they are read."""
        metrics.archive_held.set(held_bytes(self._data_dir, NAME))

    def touch_while_sending(self) -> None:
        """Touch the heartbeat before each try to send an object. Raises: Stopped."""
        if self._stop.is_set():
            raise Stopped
        self._touch("storing")

    def _touch(self, state: str) -> None:
        newest = self._newest
        self._beat.touch(
            state,
            seq=None if newest is None else newest.seq,
            error=self.error,
            forgetting=self.forgetting_waits(),
        )

    def _is_due(self, now: float) -> bool:
        """Whether there is something to store, or the newest manifest is older than
        `manifest_seconds`."""
        if self._compaction_to_forget() is not None and not self._holds_compaction():
            return now - self._begun_at >= SOON_SECONDS
        if now - self._stored_at >= self._manifest_seconds:
            return True
        pause = min(PAUSE_SECONDS, self._manifest_seconds)
        return now - self._begun_at >= pause and state_stamp(self._data_dir) != self._seen

    def _round(self, now: float) -> None:
        """Do one round: steps 1 and 2 by `upload`, then 3 and 4 by `_clean`."""
        self._begun_at = now
        if self._written is None:
            self._written = self._read_written()
        seen = state_stamp(self._data_dir)
        done = upload(
            self._data_dir,
            self._store,
            lambda done, of: self.touch_while_sending(),
            NAME,
            self._owner,
            self._disk,
            lambda: self._clock.now_us() / 1e6,
            self._lead.check,
        )

        # After the upload: if it failed, the next round must still find a change.
        self._seen = seen
        self._stored_at = self._clock.monotonic()
        self._newest = made = done.manifest
        self._written.pop(made.name, None)
        self._written[made.name] = _Written(made.created_at, made.changelog_offset)
        metrics.manifest_at.set(made.created_at)
        metrics.manifest_seq.set(made.seq)
        metrics.archive_rounds.labels("stored").inc()
        metrics.archive_bytes.inc(done.num_bytes)
        self._cleaned = False
        self._clean()

    def _clean(self) -> None:
        """Remove the data from store and changelog that no machine needs any more: steps 3 and
        4."""
        self._cleaned_at = self._clock.monotonic()
        self._lead.check()
        compaction = self._compaction_to_forget()
        removed = self._sweep.remove(
            self._clock.now_us() / 1e6,
            self._owner,
            None if compaction is None else compaction.seq,
        )
        if any(removed):
            logger.info("store_swept", manifests=removed[0], objects=removed[1])
        self._trim(compaction)
        self._trainer_objects = (
            self._find_trainer_objects(compaction) if compaction is not None else []
        )
        self._cleaned = not self._sweep.waiting and not self._trainer_objects
        if compaction is not None and not self.forgetting_waits():
            write_durably(self._folder / FORGOTTEN, b"%d" % compaction.seq, self._disk)
            logger.info(
                "compaction_reached_store_and_changelog",
                seq=compaction.seq,
                meaning="neither holds the removed data any more",
            )
        self._report_waiting_compaction()

    def _find_trainer_objects(self, compaction: CompactionDone) -> list[str]:
        """Find the trainer's objects in the store that may contain data that a compaction removed;
        the trainer itself removes them. Returns: their names, for an operator. Raises:
        StoreError."""
        stored = {Path(name).stem for name in self._store.sizes(VERSIONS)}
        gone = stored - {path.name for path in (self._data_dir / "models").glob("*")}
        old = [
            name
            for name, one in stored_checkpoints(self._store).items()
            if one.purged_before < compaction.edge
        ]
        return [f"version {name}" for name in sorted(gone)] + sorted(old)

    def _trim(self, compaction: CompactionDone | None) -> None:
        """Delete the changelog's records before the oldest manifest that a new follower may still
        fetch; after a compaction, before the newest manifest. Raises: KafkaError."""
        if self._changelog is None:
            return
        until = (
            self._deletable() if compaction is None else self._offset_after_compaction(compaction)
        )
        first, end = self._changelog.bounds()
        if until is not None and until > first and self._is_read_to(until):
            self._lead.check()
            self._changelog.delete_before(until)
            logger.info("changelog_trimmed", first_offset=until, records=until - first)
            first = until
        metrics.changelog_records.set(end - first)

    def _is_read_to(self, offset: int) -> bool:
        """Whether the durable position of this data directory is at an offset or after it. With a
        position before the changelog's first record, the leader could not start again."""
        position = durable_position(self._data_dir, self._disk)
        return position is not None and position.offset >= offset

    def _deletable(self) -> int | None:
        """The offset before which no follower reads, apart from one that began to fetch a manifest
        more than `bootstrap_seconds` ago; None if there is none."""
        assert self._written is not None
        latest = self._clock.now_us() / 1e6 - self._bootstrap
        *older, _ = self._written.items()
        # Only the newest manifest of that age or older matters.
        past = [name for name, one in older if one.at <= latest]
        offsets = [self._written[name].offset for name in past]
        for name in past[:-1]:
            del self._written[name]
        oldest = max((offset for offset in offsets if offset is not None), default=None)
        # If the topic was created again, its offsets started at 0 again.
        later = [one.offset for one in self._written.values() if one.offset is not None]
        return None if oldest is None else min([oldest, *later])

    def _offset_after_compaction(self, compaction: CompactionDone) -> int | None:
        """The offset of the newest manifest if a compaction requires that all records before it go;
        otherwise None."""
        newest = self._newest
        is_behind = newest is not None and newest.compacted >= compaction.seq
        if newest is None or not is_behind or newest.changelog_seq < compaction.seq:
            return None
        return newest.changelog_offset

    def _read_written(self) -> dict[str, _Written]:
        """Read the times and offsets of the stored manifests."""
        written = {}
        for name in manifests.names(self._store):
            with contextlib.suppress(ManifestError):
                old = manifests.read(self._store, name)
                written[name] = _Written(old.created_at, old.changelog_offset)
        return written

    def _compaction_to_forget(self) -> CompactionDone | None:
        """The newest compaction, if store or changelog may still contain its deleted data."""
        done = read_compacted(self._data_dir)
        return done if done is not None and done.seq > read_forgotten(self._data_dir) else None

    def _holds_compaction(self) -> bool:
        """Whether the newest manifest, and its position in the changelog, are newer than the newest
        compaction."""
        done = read_compacted(self._data_dir)
        newest = self._newest
        if done is None or newest is None or newest.compacted < done.seq:
            return False
        return newest.changelog_offset is None or newest.changelog_seq >= done.seq

    def forgetting_waits(self) -> str:
        """The reason, for an operator, why store and changelog may still contain deleted data of
        the newest compaction; "" if they do not."""
        with contextlib.suppress(CorruptionError):
            if self._compaction_to_forget() is None:
                return ""
            if not self._holds_compaction():
                return "a manifest that is newer than the compaction"
            if self._sweep.waiting:
                return self._sweep.waiting
            if self._trainer_objects:
                return f"the trainer, which still has {self._trainer_objects[0]} in the store"
            if not self._cleaned:
                return "the removal of older manifests' objects, and of the changelog's records"
        return ""

    def _report_waiting_compaction(self) -> None:
        done = self._compaction_to_forget()
        metrics.compaction_waits_since.set(0 if done is None else done.done_at)

    def _note_failure(self, error: Exception) -> None:
        """Log a failure, unless it was logged lately, and plan the next try."""
        pause = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(self._failures, 10))
        self._retry_at = self._clock.monotonic() + pause
        self._failures += 1
        metrics.archive_rounds.labels("failed").inc()
        kind = type(error).__name__
        if self._lasting.is_due(kind):
            logger.error("archive_failed", error=str(error), kind=kind)
        self.error = str(error)
        self._beat.note_failure(NAME, self.error)

    def _owners_name(self) -> str:
        """The name of this archive in its leases in the store. It is made once per data
        directory."""
        path = self._folder / OWNER
        if not path.exists():
            write_durably(path, new_owner().encode(), self._disk)
        return path.read_text()


def _wait(stop: threading.Event) -> Callable[[float], None]:
    """A sleep that ends early when `stop` is set. Raises: Stopped then."""

    def wait(seconds: float) -> None:
        stop.wait(seconds)

    return wait


def read_forgotten(data_dir: Path) -> int:
    """Read the commit of the newest compaction with no deleted data left in store and changelog; 0
    for none."""
    try:
        return int((folder_of(data_dir, NAME) / FORGOTTEN).read_bytes())
    except FileNotFoundError:
        return 0


def state_stamp(data_dir: Path) -> object:
    """A value that changes when there is something to store: a segment was sealed, which starts a
    new journal file; a version was published; or the trainer stored a checkpoint."""
    journals = journal_files(data_dir / "journal")
    newest = journals[-1].name if journals else ""
    names = []
    for folder in ("models", "train/checkpoints"):
        with contextlib.suppress(FileNotFoundError):
            paths = (data_dir / folder).iterdir()
            names += [p.name for p in paths if not p.name.startswith(".")]
    moves = 0
    with contextlib.suppress(FileNotFoundError):
        moves = (data_dir / "models" / "journal.jsonl").stat().st_size
    return newest, sorted(names), moves

"""Explains to an operator why a compaction waits: for roles, windows or the store."""

from datetime import UTC, datetime
from pathlib import Path

from streamd.eventlog.deletions import deletes_until
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.reader import DeletesReader
from streamd.eventlog.upkeep.holds import read_compacted, read_holds
from streamd.number_texts import count_noun, span
from streamd.roles import ARCHIVE, COMPACT
from streamd.settings.log import LogSettings
from streamd.store.archive import read_forgotten
from streamd.telemetry.heartbeat import read_beat
from streamd.windows import ends_until_after

REWRITING = "rewriting segments"
"""The part of a compaction after all roles have applied the deletes."""
TRAIN = "train"


def late_roles(data_dir: Path, request: int) -> dict[str, int]:
    """Role that a compaction waits for -> event id up to which its files have no deleted data.

    request: event id; the compaction removes the data of deletes before it.
    """
    holds = read_holds(data_dir)
    tail = JournalTail.open(data_dir)
    seq = 0 if tail is None else deletes_until(data_dir, tail.state, request)[1]
    return {
        role: min(hold.edge, hold.purged_before_event)
        for role, hold in holds.items()
        if hold.edge < request or not hold.has_purged(request, seq)
    }


def wait_reason(data_dir: Path, request: int, width_us: int, now_us: int) -> str:
    """The reason why a compaction waits now. request: as in `late_roles`. width_us: of a window.
    now_us: wall clock, microseconds.

    Returns: for example "waiting for serve-2, which does not run; for train to learn 2 windows,
    which close in 12 min and in 1 h 12 min".
    """
    late = late_roles(data_dir, request)
    if not late:
        beat = read_beat(data_dir, COMPACT)
        error = "" if beat is None else beat.detail.get("error", "")
        return f"{REWRITING} failed: {error}" if error else REWRITING
    # A role that does not run keeps segments until its lease ends.
    reasons = []
    for role, event in late.items():
        beat = read_beat(data_dir, role)
        if beat is None or not beat.alive:
            reasons.append(f"for {role}, which does not run")
        elif role == TRAIN:
            reasons.append(f"for {role}{_windows(data_dir, request, width_us, now_us)}")
        elif event < request:
            reasons.append(f"for {role} (at event {event:,} of {request:,})")
        else:
            reasons.append(f"for {role} to remove deleted data from its files")
    return f"waiting {'; '.join(reasons)}"


def _windows(data_dir: Path, request: int, width_us: int, now_us: int) -> str:
    """The windows on which the trainer must train before a compaction, as text: the newest version
    and the one before must both be trained on a window that begins after the deletes."""
    log = DeletesReader.open(data_dir, keep_keys=False)
    beat = read_beat(data_dir, TRAIN)
    trained = 0 if beat is None else int(beat.detail.get("edge", 0))
    if log is None:
        return ""
    ends = ends_until_after(log, request, width_us)
    open_ends = [end for end in ends if log.watermark < end]
    if not open_ends:
        is_done = log.lower_bound(ends[-1]) <= trained
        return " to publish a version" if is_done else " to learn windows that have closed"
    count = "a window" if len(open_ends) == 1 else count_noun(len(open_ends), "window")
    # In a live stream, event time keeps pace with the wall clock; in a recording it does not.
    if abs(now_us - log.watermark) < width_us:
        closing = " and in ".join(span(max(0, end - now_us) / 1e6) for end in open_ends)
        when = f"which close{'s' if len(open_ends) == 1 else ''} in {closing}"
    else:
        closing = " and of ".join(map(utc, open_ends))
        verb = "ends" if len(open_ends) == 1 else "end"
        when = f"which {verb} at event times of {closing}; the log is at {utc(log.watermark)}"
    if log.num_edges <= request:
        when += "; no event has come after the delete yet"
    return f" to learn {count}, {when}"


def utc(time_us: int) -> str:
    """A time in microseconds since the epoch, as "2026-03-01 14:00 UTC"."""
    return f"{datetime.fromtimestamp(time_us // 1_000_000, UTC):%Y-%m-%d %H:%M} UTC"


def has_store_to_clean(data_dir: Path, log: LogSettings) -> bool:
    """Whether a store and a changelog may contain data that a compaction removed here, as on the
    leader of a log with followers. Raises: CorruptionError."""
    has_store = bool(log.name and log.store) and log.member != "replica"
    return has_store and read_compacted(data_dir) is not None


def store_wait_reason(data_dir: Path) -> str:
    """The reason why store and changelog may still contain the newest compaction's deleted data, ""
    if they do not. Raises: CorruptionError."""
    compacted = read_compacted(data_dir)
    if compacted is None or read_forgotten(data_dir) >= compacted.seq:
        return ""
    beat = read_beat(data_dir, ARCHIVE)
    if beat is None or not beat.alive:
        return "the role archive, which does not run"
    return str(beat.detail.get("error") or beat.detail.get("forgetting") or beat.state)

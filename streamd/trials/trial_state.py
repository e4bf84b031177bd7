"""The state of a trial on disk: open impressions, sums of units, and the positions in topic and log
up to which they are complete.

It is one SQLite database. Each change is a transaction that contains the new positions too, so a
kill at any moment leaves a state between two changes, and each record and event counts once.

Keys and units are stored as hashes of 64 bits: the state has no text of a user.
"""

import hashlib
import json
import sqlite3
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from streamd.errors import SettingsError
from streamd.roles import TRIAL, folder_of
from streamd.trials.always_valid import ArmSums
from streamd.trials.impressions import Impression, Outcome

TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS offsets (part INTEGER PRIMARY KEY, next INTEGER);
CREATE TABLE IF NOT EXISTS open (answer INTEGER PRIMARY KEY, unit INTEGER, arm TEXT, src INTEGER,
  edge INTEGER, time_us INTEGER, dst BLOB, outcomes INTEGER, value REAL);
CREATE INDEX IF NOT EXISTS open_src ON open (src);
CREATE INDEX IF NOT EXISTS open_time ON open (time_us);
CREATE TABLE IF NOT EXISTS taken (answer INTEGER, outcome INTEGER, PRIMARY KEY (answer, outcome))
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS early (answer INTEGER, time_us INTEGER, value REAL);
CREATE INDEX IF NOT EXISTS early_answer ON early (answer);
CREATE INDEX IF NOT EXISTS early_time ON early (time_us);
CREATE TABLE IF NOT EXISTS units (unit INTEGER PRIMARY KEY, arm TEXT, outcomes INTEGER, value REAL);
CREATE TABLE IF NOT EXISTS nodes (node INTEGER PRIMARY KEY, src INTEGER, unit INTEGER);
CREATE TABLE IF NOT EXISTS sums (arm TEXT PRIMARY KEY, opened INTEGER, impressions INTEGER,
  outcomes INTEGER, units INTEGER, takers INTEGER, total REAL, squares REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reasons (reason TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID;
"""
CACHE_KIB = 64 * 1024
"""Memory of SQLite's page cache; the rest of the state is on disk only."""
GRACE_US = 3_600_000_000
"""Event time for which an impression stays open after its horizon, for outcomes in the topic."""
AHEAD_US = 7 * 86_400_000_000
"""Event time after the log's newest event up to which an impression counts, or the horizon if that
is longer: the log may lag while ingest is down. A time in another unit is further away."""
MAX_EARLY = 100_000
"""Maximum number of outcomes that wait for their impression."""
MAX_OF_SOURCE = 1_000
"""Number of newest open impressions of a source among which an event finds its own."""
CLOSED_AT_ONCE = 5_000
"""Impressions closed in one transaction."""
MAX_VALUE = 1e15
"""Largest absolute value of an outcome."""
MAX_INTEGER = 2**62
"""Times and event ids below it fit SQLite's integers, with the horizon added."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """The parts of a trial that cannot change while it runs. shares: arm -> share. edge_set: name
    of the set of outcome edges, None without one."""

    name: str
    shares: Mapping[str, float]
    horizon_seconds: int
    edge_set: str | None

    def text(self) -> str:
        """The definition as JSON."""
        content = {
            "name": self.name,
            "shares": dict(sorted(self.shares.items())),
            "horizon_seconds": self.horizon_seconds,
            "edge_set": self.edge_set,
        }
        return json.dumps(content)


class OutcomeEdge(NamedTuple):
    """An event that may be an outcome. event: its id. src, dst: hashes of keys."""

    event: int
    src: int
    dst: int
    time_us: int


class Shown(NamedTuple):
    """An open impression. dst: hashes of the shown nodes."""

    answer: int
    edge: int
    time_us: int
    dst: frozenset[int]


def hash_text(text: str) -> int:
    """A hash of a text as SQLite's integers are: 64 bits with a sign."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def hash_key(key: str | int) -> int:
    """A hash of a node's key: the text "5" and the integer 5 are different keys."""
    return hash_text(f"{type(key).__name__}:{key}")


class TrialState:
    """The state of one trial. Owner: the role's loop; others read the file."""

    def __init__(self, path: Path, definition: Definition, time_scale: int) -> None:
        """time_scale: microseconds in a unit of `time` in outcomes. Raises: SettingsError if the
        trial of that name runs with another definition."""
        self._definition = definition
        self._time_scale = time_scale
        self._horizon_us = definition.horizon_seconds * 1_000_000
        self._db = sqlite3.connect(path, isolation_level=None)
        # FULL syncs at each commit, so that a power cut loses none.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", f"cache_size=-{CACHE_KIB}"):
            self._db.execute(f"PRAGMA {pragma}")
        with self._transaction():
            for statement in TABLES.split(";"):
                self._db.execute(statement)
            own = self._meta("definition")
            if own is None:
                self._set_meta("definition", definition.text())
        # Figures of two definitions would be mixed.
        if own is not None and own != definition.text():
            self._db.close()
            raise SettingsError(
                f"The trial {definition.name!r} runs with other arms, horizon or edge set.",
                "give the changed trial another name, or set these back.",
            )

    def close(self) -> None:
        self._db.close()

    # Positions

    @property
    def position(self) -> int | None:
        """Id of the next event to read, None before the first impression."""
        found = self._meta("position")
        return None if found is None else int(str(found))

    @property
    def offsets(self) -> dict[int, int]:
        """Partition -> offset of the next record to read."""
        return dict(self._db.execute("SELECT part, next FROM offsets"))

    @property
    def has_open(self) -> bool:
        """Whether there are open impressions."""
        return self._db.execute("SELECT 1 FROM open LIMIT 1").fetchone() is not None

    def with_open(self, sources: Iterable[int]) -> set[int]:
        """The sources with open impressions. sources: hashes of keys."""
        find = "SELECT 1 FROM open WHERE src = ? LIMIT 1"
        return {src for src in sources if self._db.execute(find, (src,)).fetchone()}

    def begin_at(self, first_event: int) -> None:
        """Set the position to the first event that may be an outcome, if there is an impression.
        first_event: of the log. Impressions with earlier events are late."""
        found = self._db.execute("SELECT min(edge) FROM open").fetchone()[0]
        if self.position is not None or found is None:
            return
        with self._transaction():
            late = self._db.execute("DELETE FROM open WHERE edge < ?", (first_event,)).rowcount
            self._count(Counter(late=late))
            self._set_meta("position", max(found, first_event))

    # Records of the topic

    def take_records(
        self,
        values: Iterable[bytes | None],
        offsets: Mapping[int, int],
        newest_us: int,
        other_nodes: Sequence[str] = (),
        lost: int = 0,
        find_node: Callable[[Impression], int | None] = lambda record: None,
    ) -> None:
        """Take in records of the topic. offsets: partition -> offset after them. newest_us: time of
        the log's newest event. other_nodes: edge sets between other nodes than outcomes. lost:
        number of records that Kafka has dropped. find_node: returns the id of the source of an
        impression, None if the log does not have it."""
        # All records, and the offsets after them, in one transaction.
        reasons = Counter(lost=lost)
        position = self.position
        with self._transaction():
            for value in values:
                try:
                    record = msgspec.json.decode(value or b"", type=Impression | Outcome)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    reasons["malformed"] += 1
                    continue
                if isinstance(record, Outcome):
                    reasons[self._take_outcome(record)] += 1
                    continue
                reason = self._why_not(record, newest_us, other_nodes)
                if not reason and position is not None and record.edge < position:
                    # It may be a copy of one that is known.
                    reason = "double" if self._is_open(record) else "late"
                reason = reason or self._take_impression(record)
                reasons[reason] += 1
                if not reason and (node := find_node(record)) is not None:
                    self._note_node(node, record.src)
            self._count(reasons)
            self._db.executemany("REPLACE INTO offsets VALUES (?, ?)", offsets.items())

    def _why_not(self, record: Impression, newest_us: int, other_nodes: Sequence[str]) -> str:
        """The reason why an impression cannot be joined, "" if it can. Arguments as of
        `take_records`."""
        if not (0 <= record.edge < MAX_INTEGER and 0 <= record.time_us < MAX_INTEGER):
            return "malformed"
        if record.trial != self._definition.name:
            return "other_trial"
        if record.arm not in self._definition.shares:
            return "other_arm"
        if record.edge_set in other_nodes:
            return "other_nodes"
        # It would stay open for as long.
        most_us = newest_us + max(self._horizon_us, AHEAD_US)
        return "ahead" if record.time_us > most_us else ""

    def _is_open(self, record: Impression) -> bool:
        find = "SELECT 1 FROM open WHERE answer = ?"
        return self._db.execute(find, (hash_text(record.answer),)).fetchone() is not None

    def _take_impression(self, record: Impression) -> str:
        """Open an impression. Returns: the reason why not, or ""."""
        answer = hash_text(record.answer)
        shown = array("q", (hash_key(key) for key in record.dst)).tobytes()
        row = (
            answer,
            hash_text(record.unit),
            record.arm,
            hash_key(record.src),
            record.edge,
            record.time_us,
            shown,
        )
        insert = "INSERT OR IGNORE INTO open VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0.0)"
        if not self._db.execute(insert, row).rowcount:
            return "double"
        self._add(record.arm, opened=1)

        # Its outcomes may be in another partition, which was read before.
        early = self._db.execute("SELECT time_us, value FROM early WHERE answer = ?", (answer,))
        for time_us, value in early.fetchall():
            self._count(Counter([self._join_outcome(answer, record.time_us, time_us, value)]))
        self._db.execute("DELETE FROM early WHERE answer = ?", (answer,))
        return ""

    def _take_outcome(self, record: Outcome) -> str:
        """Join an outcome of the topic. Returns: the reason why not, or ""."""
        time_us = record.time * self._time_scale
        # Larger numbers do not fit SQLite's integers, and would hide all others in a sum.
        if not (abs(record.value) <= MAX_VALUE and 0 <= time_us < MAX_INTEGER):
            return "malformed"
        answer = hash_text(record.answer)
        find = "SELECT time_us FROM open WHERE answer = ?"
        shown = self._db.execute(find, (answer,)).fetchone()
        if shown is not None:
            return self._join_outcome(answer, shown[0], time_us, record.value)
        if self._db.execute("SELECT count(*) FROM early").fetchone()[0] >= MAX_EARLY:
            return "unknown"

        # It waits for its impression.
        row = (answer, time_us, record.value)
        self._db.execute("INSERT INTO early VALUES (?, ?, ?)", row)
        return ""

    def _join_outcome(self, answer: int, shown_us: int, time_us: int, value: float) -> str:
        # Only outcomes within the horizon count, in all arms alike.
        if time_us <= shown_us:
            return "before"
        if time_us > shown_us + self._horizon_us:
            return "after"
        return self._join(answer, hash_text(f"at {time_us}"), value)

    def _join(self, answer: int, outcome: int, value: float) -> str:
        """Add an outcome to an open impression, once. outcome: a hash that identifies it."""
        row = (answer, outcome)
        if not self._db.execute("INSERT OR IGNORE INTO taken VALUES (?, ?)", row).rowcount:
            return "double"
        # The primary key of the table made it the first one.
        update = "UPDATE open SET outcomes = outcomes + 1, value = value + ? WHERE answer = ?"
        self._db.execute(update, (value, answer))
        return ""

    # Events of the log

    def take_edges(self, edges: Sequence[OutcomeEdge], position: int) -> None:
        """Join events with the newest open impression that showed their destination to their
        source. position: id of the event after them."""
        shown: dict[int, list[Shown]] = {}
        reasons: Counter[str] = Counter()
        with self._transaction():
            for edge in edges:
                if edge.src not in shown:
                    shown[edge.src] = self._shown_to(edge.src)
                for one in shown[edge.src]:
                    is_after = one.edge <= edge.event and one.time_us < edge.time_us
                    is_within = edge.time_us <= one.time_us + self._horizon_us
                    if is_after and is_within and edge.dst in one.dst:
                        reasons[self._join(one.answer, edge.dst, 1.0)] += 1
                        break
            self._count(reasons)
            self._set_meta("position", position)

    def _shown_to(self, src: int) -> list[Shown]:
        """The open impressions of a source, newest first."""
        rows = self._db.execute(
            "SELECT answer, edge, time_us, dst FROM open WHERE src = ? "
            "ORDER BY edge DESC, time_us DESC, answer LIMIT ?",
            (src, MAX_OF_SOURCE),
        )
        return [Shown(a, e, t, frozenset(array("q", dst))) for a, e, t, dst in rows]

    # Deleted nodes

    def note_nodes(self, keys: Mapping[int, str | int]) -> None:
        """Remember the hashes of nodes by their ids, for `forget`."""
        with self._transaction():
            for node, key in keys.items():
                self._note_node(node, key)

    def _note_node(self, node: int, key: str | int) -> None:
        row = (node, hash_key(key), hash_text(str(key)))
        self._db.execute("INSERT OR IGNORE INTO nodes VALUES (?, ?, ?)", row)

    def forget(self, nodes: Iterable[int]) -> None:
        """Remove the open impressions of deleted nodes, and the units with their keys as names. The
        sums of closed impressions stay. nodes: ids."""
        find = "SELECT src, unit FROM nodes WHERE node = ?"
        with self._transaction():
            for node in nodes:
                known = self._db.execute(find, (node,)).fetchone()
                if known is None:
                    continue
                src, unit = known
                rows = self._db.execute("SELECT answer, arm FROM open WHERE src = ?", (src,))
                for answer, arm in rows.fetchall():
                    self._db.execute("DELETE FROM open WHERE answer = ?", (answer,))
                    self._db.execute("DELETE FROM taken WHERE answer = ?", (answer,))
                    self._add(arm, opened=-1)
                    self._count(Counter(deleted=1))
                self._db.execute("DELETE FROM units WHERE unit = ?", (unit,))
                self._db.execute("DELETE FROM nodes WHERE node = ?", (node,))

    # Units

    def close_before(self, time_us: int) -> bool:
        """Add impressions to their units, if their horizon and GRACE_US ended before an event time.
        Returns: whether there may be more of them."""
        until = time_us - self._horizon_us - GRACE_US
        find = "SELECT answer, unit, arm, outcomes, value FROM open WHERE time_us < ? LIMIT ?"
        rows = self._db.execute(find, (until, CLOSED_AT_ONCE)).fetchall()
        with self._transaction():
            for answer, unit, arm, outcomes, value in rows:
                self._db.execute("DELETE FROM open WHERE answer = ?", (answer,))
                self._db.execute("DELETE FROM taken WHERE answer = ?", (answer,))
                self._add_to_unit(unit, arm, outcomes, value)
            old = "DELETE FROM early WHERE time_us < ?"
            self._count(Counter(unknown=self._db.execute(old, (until,)).rowcount))
        return len(rows) == CLOSED_AT_ONCE

    def _add_to_unit(self, unit: int, arm: str, outcomes: int, value: float) -> None:
        find = "SELECT arm, outcomes, value FROM units WHERE unit = ?"
        known = self._db.execute(find, (unit,)).fetchone()
        if known is not None and known[0] != arm:
            # Servers had other shares for a while.
            self._count(Counter(moved=1))
            return

        # The sum of squares changes by that of the unit.
        _, had_outcomes, had = known or (arm, 0, 0.0)
        now = had + value
        row = (unit, arm, had_outcomes + outcomes, now)
        self._db.execute("REPLACE INTO units VALUES (?, ?, ?, ?)", row)
        self._add(
            arm,
            impressions=1,
            outcomes=outcomes,
            units=int(known is None),
            takers=int(not had_outcomes and outcomes > 0),
            total=value,
            squares=now * now - had * had,
        )

    def _add(self, arm: str, **more: float) -> None:
        """Add to the sums of an arm."""
        zeros = "INSERT OR IGNORE INTO sums VALUES (?, 0, 0, 0, 0, 0, 0, 0)"
        self._db.execute(zeros, (arm,))
        terms = ", ".join(f"{name} = {name} + ?" for name in more)
        self._db.execute(f"UPDATE sums SET {terms} WHERE arm = ?", (*more.values(), arm))

    # The looks, and counts

    def keep(self, name: str, value: float) -> None:
        """Store a figure of a look that later looks need."""
        with self._transaction():
            self._set_meta(name, value)

    def _count(self, reasons: Mapping[str, int]) -> None:
        add = "INSERT INTO reasons VALUES (?, ?) ON CONFLICT DO UPDATE SET number = number + ?"
        rows = [(reason, n, n) for reason, n in reasons.items() if reason and n]
        self._db.executemany(add, rows)

    def _meta(self, name: str) -> object:
        found = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if found is None else found[0]

    def _set_meta(self, name: str, value: object) -> None:
        self._db.execute("REPLACE INTO meta VALUES (?, ?)", (name, value))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All changes in it are written together, or none."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialSums:
    """The content of a state that its report needs. opened: arm -> impressions so far. impressions,
    outcomes: arm -> number in closed impressions. sums: arm -> sums over units. reasons: reason ->
    records and events that count nowhere. kept: figures of earlier looks."""

    definition: Definition
    opened: dict[str, int]
    impressions: dict[str, int]
    outcomes: dict[str, int]
    sums: dict[str, ArmSums]
    reasons: dict[str, int]
    kept: dict[str, float]


def state_path(data_dir: Path, trial: str) -> Path:
    """The file with the state of a trial, which may not exist yet."""
    return folder_of(data_dir, TRIAL) / f"{trial}.sqlite"


def read_sums(path: Path) -> TrialSums | None:
    """Read a state, while its owner may write. Returns: None if there is none yet."""
    if not path.exists():
        return None
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    try:
        # All from one moment.
        db.execute("BEGIN")
        meta = dict(db.execute("SELECT name, value FROM meta"))
        rows = {row[0]: row[1:] for row in db.execute("SELECT * FROM sums")}
        reasons = dict(db.execute("SELECT reason, number FROM reasons ORDER BY reason"))
    except sqlite3.OperationalError:
        return None
    finally:
        db.close()
    if "definition" not in meta:
        return None
    definition = Definition(**json.loads(meta["definition"]))
    arms = {arm: rows.get(arm, (0,) * 7) for arm in definition.shares}
    return TrialSums(
        definition=definition,
        opened={arm: row[0] for arm, row in arms.items()},
        impressions={arm: row[1] for arm, row in arms.items()},
        outcomes={arm: row[2] for arm, row in arms.items()},
        sums={
            arm: ArmSums(units=row[3], takers=row[4], total=row[5], squares=row[6])
            for arm, row in arms.items()
        },
        reasons=reasons,
        kept={name: value for name, value in meta.items() if isinstance(value, float)},
    )

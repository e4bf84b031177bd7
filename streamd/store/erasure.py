"""Finds the nodes of an erasure that are still in the log, and the reason why."""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from streamd.errors import SettingsError, StreamdError
from streamd.eventlog.journal.journal import NOTHING
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.key_search import KeyRow, find_keys
from streamd.eventlog.layout import KEYS
from streamd.eventlog.reader import DeletesReader, LogReader
from streamd.events import Key, SetKey, split_key
from streamd.ingest.delete_events import SentDelete
from streamd.schema import Schema
from streamd.telemetry.heartbeat import read_beat

KEY_TYPES = ("text", "integer")


class Erasure:
    """Follows the erasure of some keys in the log of a data directory. Owner: a command or a
    request. rows: the rows of these keys in the key table, at the start."""

    def __init__(self, log: LogReader, rows: Sequence[KeyRow]) -> None:
        self._log = log
        self.rows = rows

    @classmethod
    def open(cls, data_dir: Path, keys: Collection[Key]) -> "Erasure":
        """Open the log and look the keys up. Raises: StreamdError if there is no log,
        CorruptionError."""
        log = DeletesReader.open(data_dir, keep_keys=False)
        if log is None:
            raise StreamdError(f"{data_dir} holds no log.", "set --data-dir.")
        return cls(log, rows_of(log, keys))

    def live_rows(self) -> list[KeyRow]:
        """Read new commits, and return the rows of nodes that are not deleted yet."""
        self._log.refresh()
        node_K = np.array([row.node for row in self.rows], np.int64)
        gone_K = self._log.deletions.is_gone(node_K)
        return [row for row, gone in zip(self.rows, gone_K.tolist(), strict=True) if not gone]

    def live(self) -> list[Key]:
        """The keys of `live_rows`."""
        return [row.key for row in self.live_rows()]

    def is_read(self, sent: SentDelete) -> bool:
        """Whether ingest has read a delete, so that it is in the log or was refused."""
        positions = self._log.state.progress.positions.get(sent.topic, {})
        return sent.partition in positions and positions[sent.partition].offset > sent.offset

    def wait_reason(self, sent: Sequence[SentDelete], log_role: str) -> str:
        """The reason why the log does not have all deletes in `sent`. log_role: the role that
        writes the log on this machine."""
        # Ingest has read the record, and the log does not have it: so it is a dead letter.
        refused = [one for one in sent if self.is_read(one)]
        if refused:
            one = refused[0]
            return (
                f"the delete at offset {one.offset:,} of partition {one.partition} of {one.topic} "
                "was refused: see `streamd deadletter list`"
            )
        beat = read_beat(self._log.data_dir, log_role)
        if beat is None or not beat.alive:
            return f"the deletes are in Kafka, and {log_role} does not run here"
        return f"the deletes are in Kafka, and {log_role} has not read them ({beat.state})"


def rows_of(log: LogReader, keys: Collection[Key]) -> list[KeyRow]:
    """The rows of some keys in a log's key table. Raises: CorruptionError."""
    return find_keys(log.data_dir, log.state.files.get(KEYS, NOTHING).num_bytes, keys)


def schema_of_log(data_dir: Path) -> Schema:
    """The schema of the log in a data directory. Raises: StreamdError if there is none."""
    tail = JournalTail.open(data_dir)
    if tail is None:
        raise StreamdError(f"{data_dir} holds no log.", "set --data-dir.")
    return tail.state.schema


def log_role_of(member: str, log_name: str) -> str:
    """The role that writes the log on this machine, by `log.member` and `log.name`."""
    return "follow" if log_name and member == "replica" else "ingest"


def candidates(
    text: str, schema: Schema, node_set: str | None = None, key_type: str | None = None
) -> list[Key]:
    """The keys that a text on the command line may mean: in each node set the text, and the integer
    if the text is one.

    node_set, key_type: limit the keys to these; None for all. Raises: SettingsError.
    """
    names = schema.node_set_names
    if node_set is not None and node_set not in names:
        raise SettingsError(
            f"The log has no node set {node_set!r}.", f"name one of: {', '.join(names)}."
        )
    plain: list[str | int] = [] if key_type == "integer" else [text]
    if key_type != "text" and (number := _integer(text)) is not None:
        plain.append(number)
    if not plain:
        raise SettingsError(f"{text!r} is not an integer key.", "leave out --key-type.")
    numbers = range(len(names)) if node_set is None else [names.index(node_set)]
    return [SetKey(n, key) if n else key for n in numbers for key in plain]


def _integer(text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        return None
    return number if str(number) == text and -(2**63) <= number < 2**63 else None


def choose_key(text: str, rows: Sequence[KeyRow], schema: Schema) -> Key | None:
    """Choose the key that a text means: the one of its candidates that has a row.

    rows: of the key table, with one of the candidates. Returns: None if there is none. Raises:
    SettingsError if there are several.
    """
    found = list(dict.fromkeys(row.key for row in rows))
    if len(found) > 1:
        held = ", ".join(f"{key_text(key, schema)}" for key in found)
        raise SettingsError(
            f"The log holds {text} several times: {held}.",
            "choose one with --node-set or --key-type.",
        )
    return found[0] if found else None


def key_text(key: Key, schema: Schema) -> str:
    """A key as text for people: its type follows if it is an integer, and its node set if there are
    several."""
    number, plain = split_key(key)
    kind = "" if isinstance(plain, str) else " (integer)"
    of_set = f" of node set {schema.node_set_names[number]}" if schema.num_node_sets > 1 else ""
    return f"{plain}{kind}{of_set}"

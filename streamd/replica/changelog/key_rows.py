"""Finds node keys in the changelog's records that carry rows of the file of keys."""

from collections.abc import Iterable, Iterator, Mapping

from streamd.eventlog.layout import KEYS
from streamd.eventlog.node_keys import encode_keys
from streamd.events import Key
from streamd.replica.changelog.records import Record, decode_records, decode_value
from streamd.store.deleted_keys import Found, TopicRecord


def find_in_changelog(
    records: Iterable[TopicRecord], topic: str, numbers: Mapping[Key, int]
) -> Iterator[Found]:
    """Find the rows of keys, each with its type and node set. A row may be split over two records
    of one commit.

    numbers: key -> the number that `Found` reports for it. Raises: ChangelogError for a record of a
    newer release.
    """
    rows = {encode_keys([key]): number for key, number in numbers.items()}
    longest = max(map(len, rows), default=1)
    kept = b""
    for record in records:
        for entry in decode_records([(record.offset, record.headers, record.value)]):
            if not isinstance(entry, Record):
                continue
            data = (kept if record.continues else b"") + _of_keys(entry)
            for row, number in rows.items():
                if (at := data.find(row)) >= 0:
                    yield Found(f"{KEYS} in {topic} at offset {record.offset}", at, number)
            kept = data[-(longest - 1) :]


def _of_keys(record: Record) -> bytes:
    """The bytes of a record that are rows of the file of keys."""
    head, data = decode_value(record)
    out = []
    at = 0
    for path, _, size in head.pieces:
        if path == KEYS:
            out.append(bytes(data[at : at + size]))
        at += size
    return b"".join(out)

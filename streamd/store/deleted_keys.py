"""Searches for the bytes of deleted keys in everything that streamd writes: the data directory,
every object of the store, and every record of the topics that replicate a log."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from streamd.errors import KafkaError, SettingsError, StoreError
from streamd.ingest.kafka.client import make_consumer
from streamd.settings.loading import KafkaSettings
from streamd.store import manifests
from streamd.store.key_bounds import CONTEXT_BYTES
from streamd.store.objects import Store
from streamd.store.search import CHUNK_BYTES, KeySearch

POLL_MS = 1_000


class Found(NamedTuple):
    """A location of a key. `where`: file, object or record, as text. at: offset of the byte in it,
    -1 in a table. key: index of the key in the searched list."""

    where: str
    at: int
    key: int


@dataclass(slots=True)
class Searched:
    """Numbers of files, objects, records and bytes that were searched. Owner: the search."""

    files: int = 0
    objects: int = 0
    records: int = 0
    num_bytes: int = 0


class TopicRecord(NamedTuple):
    """A record of a topic. texts: its key, and names and values of its headers, as bytes.
    continues: whether its value continues that of the record before. headers: (name, value)
    pairs."""

    offset: int
    value: bytes
    texts: tuple[bytes, ...]
    continues: bool
    headers: tuple[tuple[str, bytes], ...] = ()


class Topic(Protocol):
    """A topic that is read from its first record to its present end. num_records: upper bound of
    the number of records, known once the first record was read."""

    name: str
    num_records: int

    def records(self) -> Iterator[TopicRecord]:
        """Yield all records. Raises: KafkaError."""


def read_keys(given: Iterable[str]) -> list[str]:
    """The keys of some arguments: each is a key, or @FILE with one a line. Raises:
    SettingsError."""
    keys = []
    for one in given:
        if not one.startswith("@"):
            keys.append(one)
            continue
        try:
            keys += Path(one[1:]).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"{one[1:]} cannot be read as a file of keys: {error}.", "give a key a line."
            ) from None
    keys = list(dict.fromkeys(filter(None, keys)))
    if not keys:
        raise SettingsError("No key is given.", "give keys, or @FILE with one a line.")
    return keys


class DeletedSearch:
    """Searches for keys, one location after the other. Owner: the command that runs it.

    searched: numbers of files, objects, records and bytes so far.
    """

    def __init__(
        self,
        keys: list[str],
        progress: Callable[[str, int, int, str], None] = lambda what, done, of, unit: None,
    ) -> None:
        """progress: called with (part of the work, done, in all, unit)."""
        self.search = KeySearch(keys)
        self._most = CONTEXT_BYTES + self.search.longest
        self.searched = Searched()
        self._part = ""
        self._begun_at = self._total = 0
        self._progress = progress

    def in_files(self, folder: Path, skip: str = "") -> Iterator[Found]:
        """Search every file under a folder, hidden ones too. skip: a folder in it to leave out, ""
        for none."""
        total = 0
        skipped = folder / skip if skip else None
        for path in _files(folder, skipped):
            with suppress(FileNotFoundError):
                total += path.stat().st_size
        self._begin(f"searching {folder}", total)
        for path in _files(folder, skipped):
            # The daemon may remove a file during the search.
            with suppress(FileNotFoundError):
                with path.open("rb") as file:
                    chunks = iter(lambda file=file: file.read(CHUNK_BYTES), b"")  # type: ignore[misc]
                    yield from self._in(str(path.relative_to(folder)), chunks)
                self.searched.files += 1

    def in_store(self, store: Store) -> Iterator[Found]:
        """Search every object of a store, even those that no manifest lists, and the bytes across
        the border of two objects of a file. Raises: StoreError."""
        sizes = store.sizes("")
        self._begin(f"searching {store.shown}", sum(sizes.values()))
        borders = _borders(store, sizes)
        lefts = _neighbors((right, left) for left, right in borders)
        rights = _neighbors(borders)
        for name, size in sorted(sizes.items()):
            found: dict[int, Found] = {}
            try:
                # An object may have other neighbors in other manifests: only its ends are read
                # again for them.
                around = zip_longest(lefts.get(name, [""]), rights.get(name, [""]), fillvalue="")
                for number, (left, right) in enumerate(around):
                    ends = [(0, min(size, 2 * self._most)), (max(0, size - 2 * self._most), size)]
                    for part in ends if number else [(0, size)]:
                        for one in self._in_part(store, sizes, (left, name, right), part):
                            found.setdefault(one.key, one)
            except StoreError:
                # The archive may have removed it since it was listed.
                if name in store.sizes(name.rpartition("/")[0]):
                    raise
                continue
            yield from found.values()
            self.searched.objects += 1

    def _in_part(
        self,
        store: Store,
        sizes: Mapping[str, int],
        names: tuple[str, str, str],
        part: tuple[int, int],
    ) -> Iterator[Found]:
        """Search a part of an object together with the bytes before and after it, since a key may
        be split over two objects.

        names: of the object before it in a file, of itself, and of the one after it; "" for none.
        part: the bytes [begin, end) of the object.
        """
        # The bytes next to the part are in this object, or in its neighbor.
        left, name, right = names
        begin, end = part
        if begin:
            before = store.get_range(name, max(0, begin - self._most), begin)
        else:
            before = _range(store, sizes, left, -self._most)
        if end < sizes[name]:
            after = store.get_range(name, end, min(sizes[name], end + self._most))
        else:
            after = _range(store, sizes, right, self._most)
        for key, at in self._find(_chunks(store, name, begin, end), before, after).items():
            if begin + at >= 0:
                yield Found(f"{name} in {store.shown}", begin + at, key)
            else:
                border = f"the bytes at the border of {left} and {name} in {store.shown}"
                yield Found(border, len(before) + at, key)

    def in_topic(self, topic: Topic) -> Iterator[Found]:
        """Search every record of a topic: value, key and headers. Raises: KafkaError."""
        self._begin("", 0)
        before = b""
        following: Iterator[TopicRecord | None] = chain(topic.records(), [None])
        for number, (record, later) in enumerate(pairwise(following), 1):
            assert record is not None
            where = f"{topic.name} at offset {record.offset}"
            for text in record.texts:
                yield from self._in(where, [text])

            # A key may be split over the values of two records.
            before = before if record.continues else b""
            after = later.value[: self._most] if later is not None and later.continues else b""
            for key, at in self._find([record.value], before, after).items():
                yield Found(where, max(0, at), key)
            before = (before + record.value)[-self._most :]
            self.searched.records += 1
            self._progress(f"searching {topic.name}", number, topic.num_records, "records")

    def _begin(self, part: str, num_bytes: int) -> None:
        """Begin a part of the work, for its progress. num_bytes: to search in it."""
        self._part = part
        self._begun_at = self.searched.num_bytes
        self._total = num_bytes

    def _in(self, where: str, chunks: Iterable[bytes]) -> Iterator[Found]:
        """Search a stream of bytes."""
        for key, at in self._find(chunks).items():
            yield Found(where, at, key)

    def _find(
        self, chunks: Iterable[bytes], before: bytes = b"", after: bytes = b""
    ) -> dict[int, int]:
        """As `KeySearch.find_in`, with progress."""

        def with_progress() -> Iterator[bytes]:
            for chunk in chunks:
                yield chunk
                self.searched.num_bytes += len(chunk)
                if self._part:
                    done = self.searched.num_bytes - self._begun_at
                    self._progress(self._part, done, self._total, "bytes")

        return self.search.find_in(with_progress(), before, after)


def _files(folder: Path, skipped: Path | None) -> Iterator[Path]:
    """The files under a folder, in order of their names, without those under `skipped`."""
    for path in sorted(folder.rglob("*")):
        if skipped is not None and path.is_relative_to(skipped):
            continue
        if path.is_file() and not path.is_symlink():
            yield path


def _borders(store: Store, sizes: Mapping[str, int]) -> set[tuple[str, str]]:
    """The pairs of objects that are next to each other in a file of any manifest. Raises:
    StoreError."""
    found = set()
    for _, manifest in manifests.read_all(store):
        for file in manifest.files:
            pieces = [piece for piece in file.pieces if len(piece.extents) == 1]
            for left, right in pairwise(pieces):
                offset, length = left.extents[0]
                are_stored = left.object in sizes and right.object in sizes
                if are_stored and offset + length == right.extents[0][0]:
                    found.add((left.object, right.object))
    return found


def _neighbors(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """First object of some pairs -> the second objects of its pairs."""
    found: dict[str, list[str]] = {}
    for one, other in sorted(pairs):
        found.setdefault(one, []).append(other)
    return found


def _range(store: Store, sizes: Mapping[str, int], name: str, num_bytes: int) -> bytes:
    """Read the first `num_bytes` of an object, or the last ones if the number is negative; none if
    the name is ""."""
    if not name:
        return b""
    size = sizes[name]
    if num_bytes < 0:
        return store.get_range(name, max(0, size + num_bytes), size)
    return store.get_range(name, 0, min(size, num_bytes))


def _chunks(store: Store, name: str, begin: int, end: int) -> Iterator[bytes]:
    for at in range(begin, end, CHUNK_BYTES):
        yield store.get_range(name, at, min(end, at + CHUNK_BYTES))


class KafkaTopic:
    """A topic of one partition in Kafka. num_records: number of offsets from its first to its end;
    some may have no record."""

    def __init__(self, kafka: KafkaSettings, name: str) -> None:
        self._kafka = kafka
        self.name = name
        self.num_records = 0

    def records(self) -> Iterator[TopicRecord]:
        """As in `Topic`. Yields nothing if the topic does not exist."""
        from kafka import TopicPartition
        from kafka.errors import KafkaError as ClientError
        from kafka.errors import OffsetOutOfRangeError

        partition = TopicPartition(self.name, 0)
        consumer = make_consumer(self._kafka)
        try:
            if not consumer.partitions_for_topic(self.name):
                return
            consumer.assign([partition])
            end = consumer.end_offsets([partition])[partition]
            first = consumer.beginning_offsets([partition])[partition]
            self.num_records = end - first
            consumer.seek(partition, first)
            while consumer.position(partition) < end:
                try:
                    polled = consumer.poll(timeout_ms=POLL_MS).get(partition, [])
                except OffsetOutOfRangeError:
                    # The archive may delete records during the search.
                    first = consumer.beginning_offsets([partition])[partition]
                    consumer.seek(partition, first)
                    continue
                yield from map(_as_record, polled)
        except ClientError as error:
            raise KafkaError(
                f"The topic {self.name} cannot be read: {type(error).__name__} {error}.",
                "check the broker and the rights of kafka.client.",
            ) from None
        finally:
            consumer.close()


def _as_record(record: Any) -> TopicRecord:
    of_headers = [text for name, value in record.headers for text in (name.encode(), value or b"")]
    part = dict(record.headers).get("part") or b"0"
    texts = (record.key or b"", *of_headers)
    headers = tuple((name, value or b"") for name, value in record.headers)
    return TopicRecord(record.offset, record.value or b"", texts, part != b"0", headers)

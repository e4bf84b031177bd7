"""Decodes values with a schema's id before them, as Confluent's serializers write them.

The id is a zero byte and four bytes, big-endian, or a byte 1 and the 16 bytes of a GUID. It may be
in a header instead.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import msgspec

from streamd.decode.sources.schema_registry import SchemaRegistry, UnknownSchema
from streamd.decode.wire import TOO_DEEP, json_error
from streamd.errors import BadEvent, SettingsError
from streamd.settings.loading import SchemaRegistrySettings

ID_HEADER = "__value_schema_id"
"""Header with the id of the schema of a record's value, and for Protobuf with the message
indexes."""
HEADS = {0: 5, 1: 17}
"""Bytes of an id, by its first byte."""
MAX_ID = 2**31 - 1
"""Largest id that a registry assigns. For a larger one it answers as for a wrong address."""
MAX_SCHEMAS = 1_000
"""Maximum schemas of a topic in the cache; the least recently used one is removed first."""
NUM_TRIES = 3
"""Number of requests for an id before it counts as unknown: a follower of the registry may not have
it yet."""
TRY_SECONDS = 0.25
"""Pause between these requests."""
MAX_ASKED_AGAIN = 100
"""Maximum ids of a poll that are requested more than once: only hostile records have so many."""
UNKNOWN_SECONDS = 60.0
"""Time after which an unknown id is requested again."""
MAX_UNKNOWN = 100_000
"""Maximum unknown ids in the cache."""

Read = Callable[[bytes, int], Any]
"""Reads the value that begins at an index of some bytes. Raises: BadEvent."""
SchemaId = int | UUID
_json = msgspec.json.Decoder()


def with_schema_id(record: Any) -> bytes:
    """A record's value with the id before it, even if the id is in a header."""
    value: bytes = record.value
    # As in Confluent's deserializer for Java, the last header of the name counts.
    for name, content in reversed(record.headers or ()):
        if name == ID_HEADER and content:
            return bytes(content) + value
    return value


class JSONValues:
    """JSON after a schema's id. It needs no schema, so it makes no requests."""

    value_of = staticmethod(with_schema_id)

    def prepare(self, values: Iterable[bytes], waiting: Callable[[], None]) -> None:
        """Do nothing, because no schema is needed."""

    def decode(self, value: bytes) -> list[Any]:
        """Parse the object or array in a value. Raises: BadEvent."""
        _, start = _id_of(value)
        try:
            decoded = _json.decode(memoryview(value)[start:])
        except RecursionError:
            raise BadEvent("too_deep", TOO_DEEP) from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise json_error(error, value[start:]) from None
        return decoded if isinstance(decoded, list) else [decoded]


class RegistryValues:
    """Avro or Protobuf after a schema's id. Owner: the mapping of a topic.

    The schema of an id never changes, so it is requested once and cached, even if it cannot be
    used. An unknown id is requested again after UNKNOWN_SECONDS.
    """

    value_of = staticmethod(with_schema_id)

    def __init__(self, format: str, settings: SchemaRegistrySettings) -> None:
        """Raises: SettingsError if the library of the format is missing."""
        self._compile, self._kind, self._form = _compiler(format)
        self._registry = SchemaRegistry(settings)
        self._readers: OrderedDict[SchemaId, Read | BadEvent] = OrderedDict()
        self._unknown: OrderedDict[SchemaId, tuple[float, BadEvent]] = OrderedDict()

    def prepare(self, values: Iterable[bytes], waiting: Callable[[], None]) -> None:
        """Fetch the schemas of values that will be decoded.

        Args: waiting: called before each request. Raises: SchemaRegistryError.
        """
        self._registry.waiting = waiting
        heads = {value[: HEADS.get(value[0], 0)] for value in values if value}
        ids = {_id_of(head)[0] for head in heads if head and len(head) == HEADS[head[0]]}
        missing = sorted((n for n in ids if _may_exist(n) and self._needs_asking(n)), key=str)
        for turn in range(NUM_TRIES):
            if turn and missing:
                time.sleep(TRY_SECONDS)
            for number in missing:
                self._fetch(number)
            missing = [number for number in missing if number in self._unknown][:MAX_ASKED_AGAIN]

    def decode(self, value: bytes) -> list[Any]:
        """Decode the record in a value. Raises: BadEvent, SchemaRegistryError."""
        number, start = _id_of(value)
        if not _may_exist(number):
            raise BadEvent("bad_frame", f"{number} is no schema's id: they are at most {MAX_ID}")
        reader = self._readers.get(number)
        if reader is None:
            reader = self._reader_of(number)
        if isinstance(reader, BadEvent):
            # A cached error must not collect tracebacks.
            raise reader.with_traceback(None)
        return [reader(value, start)]

    def _reader_of(self, number: SchemaId) -> Read | BadEvent:
        if self._needs_asking(number):
            self._fetch(number)
        if number in self._unknown:
            return self._unknown[number][1]
        return self._readers[number]

    def _needs_asking(self, number: SchemaId) -> bool:
        if number in self._readers:
            self._readers.move_to_end(number)
            return False
        asked_at, _ = self._unknown.get(number, (-UNKNOWN_SECONDS, None))
        return time.monotonic() - asked_at >= UNKNOWN_SECONDS

    def _fetch(self, number: SchemaId) -> None:
        """Request a schema, and cache its reader or the error. Raises: SchemaRegistryError."""
        self._unknown.pop(number, None)
        reader: Read | BadEvent
        try:
            reader = self._make_reader(number)
        except UnknownSchema as unknown:
            self._unknown[number] = time.monotonic(), unknown
            if len(self._unknown) > MAX_UNKNOWN:
                self._unknown.popitem(last=False)
            return
        except BadEvent as bad:
            reader = BadEvent("bad_schema", f"schema {number} cannot be used: {bad}")
        self._readers[number] = reader
        if len(self._readers) > MAX_SCHEMAS:
            self._readers.popitem(last=False)

    def _make_reader(self, number: SchemaId) -> Read:
        schema = self._registry.schema(number, self._form)
        if schema.kind != self._kind:
            raise BadEvent("bad_schema", f"it is of type {schema.kind[:20]}, not {self._kind}")
        needed = self._registry.referenced(schema, self._form)
        return self._compile(schema.text, {name: s.text for name, s in needed.items()})


def _compiler(format: str) -> tuple[Callable[[str, dict[str, str]], Read], str, str]:
    """The function that makes a reader from a schema and those it needs, the registry's name of the
    format, and the form in which to request its schemas. Raises: SettingsError."""
    try:
        if format == "avro":
            from streamd.decode.sources.avro import compile_avro

            return lambda text, needed: compile_avro(text, needed.values()), "AVRO", ""
        from streamd.decode.sources.protobuf import compile_protobuf

        return compile_protobuf, "PROTOBUF", "serialized"
    except ImportError as error:
        raise SettingsError(
            f"A source of format {format} needs {error.name}.",
            "pip install 'streamd-gnn[registry]'.",
        ) from None


def _may_exist(number: SchemaId) -> bool:
    return isinstance(number, UUID) or number <= MAX_ID


def _id_of(value: bytes) -> tuple[SchemaId, int]:
    """The schema's id before a value, and the index of the value. Raises: BadEvent."""
    length = HEADS.get(value[0], 0) if value else 0
    if not length or len(value) < length:
        raise BadEvent(
            "bad_frame",
            "it does not begin with a zero byte and the four bytes of a schema's id, nor with a "
            f"byte 1 and a GUID, and no header {ID_HEADER} has the id",
        )
    head = value[1:length]
    return (UUID(bytes=head) if value[0] else int.from_bytes(head, "big")), length

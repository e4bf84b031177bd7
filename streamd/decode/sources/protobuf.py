"""Reads Protobuf values with Google's library, under schemas from untrusted producers.

The registry sends files as serialized descriptors, so no `.proto` text is parsed here.
"""

import base64
import datetime
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, Error, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message

from streamd.errors import BadEvent, SchemaRegistryError

MAX_MEMORY = 200_000_000
"""Maximum bytes that the library may need for one value."""
MAX_VALUES = 1_000_000
"""Maximum fields of all messages of one value: as a Python object, each takes up to 200 bytes."""
MAX_INDEXES = 32
"""Maximum nesting of message types in a list of indexes."""
MAX_FIELDS = 20_000
"""Maximum fields of all message types of a schema, including those of its imports."""
INDEX_BYTES = 5
EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
BUILT_IN = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb
    for module in (
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
        type_pb2,
        api_pb2,
    )
}
"""Files that every schema may import, with a reference or without, each after those that it
needs."""
WRAPPERS = frozenset(m.full_name for m in wrappers_pb2.DESCRIPTOR.message_types_by_name.values())
ROOT = "streamd/root.proto"
"""Name of the schema's own file, which no import may have."""

Convert = Callable[[Message, list[int]], Any]
"""Converts a message to plain objects. The list has one number, which counts down the values that
are still allowed."""
FAILURES = (DecodeError, Error, ValueError, TypeError, LookupError, AttributeError, RecursionError)


def compile_protobuf(text: str, imports: Mapping[str, str]) -> Callable[[bytes, int], Any]:
    """Make a reader of the values of a schema.

    Args: text: its file as a serialized descriptor in base64; imports: the files that it needs, by
    the name of the import, each after those that it needs itself.
    Returns: reads the value that begins, with its list of indexes, at an index of some bytes and
    ends with them. It raises BadEvent if there is no such value.
    Raises: BadEvent if the schema cannot be used; SchemaRegistryError if the registry sent text
    instead.
    """
    pool = DescriptorPool()
    num_fields = 0
    files = {n: _file(n, content) for n, content in imports.items() if n not in BUILT_IN}
    files[ROOT] = root = _file(ROOT, text)
    try:
        # Files of the registry cannot replace these.
        for built_in in BUILT_IN.values():
            pool.AddSerializedFile(built_in)
        for file in files.values():
            num_fields += sum(map(_num_fields, file.message_type))
            if num_fields > MAX_FIELDS:
                raise BadEvent("bad_schema", f"it has more than {MAX_FIELDS} fields")
            _drop_unknown_imports(file, files)
            pool.Add(file)
        pool.FindFileByName(ROOT)
    except FAILURES as error:
        raise BadEvent("bad_schema", f"it is no schema of Protobuf: {error}"[:300]) from None
    readers: dict[tuple[int, ...], Callable[[bytes], Any]] = {}

    def decode(value: bytes, start: int) -> Any:
        indexes, start = _indexes(value, start)
        reader = readers.get(indexes)
        if reader is None:
            reader = readers[indexes] = _reader(_message(root, indexes), pool)
        return reader(value[start:])

    return decode


def _file(name: str, content: str) -> descriptor_pb2.FileDescriptorProto:
    """Parse a file's descriptor. Raises: BadEvent, SchemaRegistryError."""
    try:
        serialized = base64.b64decode(content, validate=True)
    except ValueError:
        raise SchemaRegistryError(
            "The schema registry sends Protobuf schemas as text, although it was asked for "
            "descriptors (format=serialized).",
            "use a registry that has them: Confluent's, Karapace, or Redpanda from 25.2 on.",
        ) from None
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(serialized)
    except FAILURES as error:
        raise BadEvent("bad_schema", f"it is no schema of Protobuf: {error}"[:300]) from None
    file.name = name
    return file


def _num_fields(message: descriptor_pb2.DescriptorProto) -> int:
    return 1 + len(message.field) + sum(map(_num_fields, message.nested_type))


def _drop_unknown_imports(
    file: descriptor_pb2.FileDescriptorProto, known: Mapping[str, Any]
) -> None:
    """Remove imports of unknown files: they may be needed only for options, which are not read."""
    kept = [i for i, name in enumerate(file.dependency) if name in known or name in BUILT_IN]
    names = [file.dependency[i] for i in kept]
    public = [kept.index(i) for i in file.public_dependency if i in kept]
    del file.dependency[:], file.public_dependency[:], file.weak_dependency[:]
    file.dependency.extend(names)
    file.public_dependency.extend(public)


def _indexes(value: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """The indexes of a message type in its file, and the start of the message. Raises: BadEvent."""
    # The first type of the file is encoded as one zero.
    if value[start : start + 1] == b"\0":
        return (0,), start + 1
    numbers: list[int] = []
    count = 1
    while len(numbers) <= count:
        number = shift = 0
        for i in range(INDEX_BYTES):
            if start >= len(value):
                raise BadEvent("bad_protobuf", "it ends within the list of message indexes")
            byte = value[start]
            start += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
            if i == INDEX_BYTES - 1:
                raise BadEvent("bad_protobuf", "a message index is too large")
        numbers.append((number >> 1) ^ -(number & 1))
        count = numbers[0]
        # A count from outside must not allocate memory.
        if not 0 < count <= MAX_INDEXES:
            raise BadEvent(
                "bad_protobuf", f"it has {count} message indexes, not 1 to {MAX_INDEXES}"
            )
    return tuple(numbers[1:]), start


def _message(file: descriptor_pb2.FileDescriptorProto, indexes: tuple[int, ...]) -> str:
    """The full name of a message type. Raises: BadEvent."""
    name = [file.package] if file.package else []
    among = file.message_type
    for index in indexes:
        if not 0 <= index < len(among):
            raise BadEvent("bad_protobuf", "the message indexes name no type of the schema")
        name.append(among[index].name)
        among = among[index].nested_type
    return ".".join(name)


def _reader(name: str, pool: DescriptorPool) -> Callable[[bytes], Any]:
    """Make a reader of messages of one type. Raises: BadEvent."""
    try:
        kind = pool.FindMessageTypeByName(name)
        message_class = message_factory.GetMessageClass(kind)
        converters: dict[str, Convert] = {}
        convert = _converter(kind, converters)
    except FAILURES as error:
        raise BadEvent("bad_schema", f"it is no schema of Protobuf: {error}"[:300]) from None
    most = MAX_MEMORY // _rate(kind)

    def read(value: bytes) -> Any:
        if len(value) > most:
            raise BadEvent(
                "bad_protobuf",
                f"{len(value)} bytes; of this schema at most {most}, since lists of empty messages "
                "would take too much memory",
            )
        try:
            return convert(message_class.FromString(value), [MAX_VALUES])
        except (DecodeError, ValueError, RecursionError) as error:
            raise BadEvent("bad_protobuf", f"not a message of its schema: {error}"[:300]) from None

    return read


def _rate(root: Descriptor) -> int:
    """The maximum bytes of memory that the library needs for one byte of a message."""
    seen = {root.full_name: root}
    unseen = [root]
    while unseen:
        for field in unseen.pop().fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in seen:
                seen[inner.full_name] = inner
                unseen.append(inner)
    # An empty message in a list has two bytes, and memory for each field that it lacks.
    return max(32, *((64 + 16 * len(kind.fields)) // 2 for kind in seen.values()))


def _converter(kind: Descriptor, made: dict[str, Convert]) -> Convert:
    """Make the converter of messages of a type. made: those of other types, by name."""
    if kind.full_name in made:
        return made[kind.full_name]
    if kind.full_name == "google.protobuf.Timestamp" and _is_timestamp(kind):
        return made.setdefault(kind.full_name, _timestamp)
    if kind.full_name in WRAPPERS and [f.name for f in kind.fields] == ["value"]:
        return made.setdefault(kind.full_name, lambda message, left: message.value)

    # A type may contain itself, so register it before its fields.
    fields: dict[int, tuple[str, Callable[[Any, list[int]], Any] | None]] = {}
    defaults: dict[str, Any] = {}
    cost = 1 + len(kind.fields)

    def convert(message: Any, left: list[int]) -> dict[str, Any]:
        left[0] -= cost
        if left[0] < 0:
            raise BadEvent("bad_protobuf", f"more than {MAX_VALUES} values in one message")
        out = defaults.copy()
        for field, value in message.ListFields():
            # Skip extensions, which are not fields of the type.
            if field.is_extension:
                continue
            name, inner = fields[field.number]
            out[name] = value if inner is None else inner(value, left)
        return out

    made[kind.full_name] = convert
    nothing = message_factory.GetMessageClass(kind)()
    for field in kind.fields:
        inner = _of_field(field, made)
        fields[field.number] = field.name, inner
        # An absent field with presence is missing; any other absent field has its default.
        if not field.has_presence:
            value = getattr(nothing, field.name)
            defaults[field.name] = value if inner is None else inner(value, [MAX_VALUES])
    return convert


def _of_field(
    field: FieldDescriptor, made: dict[str, Convert]
) -> Callable[[Any, list[int]], Any] | None:
    """Make the converter of a field's value; None if the value is plain."""
    inner = field.message_type
    if not field.is_repeated:
        return _of_single(field, made)
    if inner is not None and inner.GetOptions().map_entry:
        of_value = _of_single(inner.fields_by_name["value"], made)

        def of_map(value: Any, left: list[int]) -> dict[str, Any]:
            _count(len(value), left)
            return {
                str(k): value[k] if of_value is None else of_value(value[k], left) for k in value
            }

        return of_map
    of_item = _of_single(field, made)

    def of_list(value: Any, left: list[int]) -> list[Any]:
        _count(len(value), left)
        return list(value) if of_item is None else [of_item(item, left) for item in value]

    return of_list


def _of_single(
    field: FieldDescriptor, made: dict[str, Convert]
) -> Callable[[Any, list[int]], Any] | None:
    if field.message_type is not None:
        return _converter(field.message_type, made)
    if field.enum_type is not None:
        names = {number: v.name for number, v in field.enum_type.values_by_number.items()}
        # A number that the schema does not name is unchanged.
        return lambda value, left: names.get(value, value)
    return None


def _count(count: int, left: list[int]) -> None:
    left[0] -= count
    if left[0] < 0:
        raise BadEvent("bad_protobuf", f"more than {MAX_VALUES} values in one message")


def _is_timestamp(kind: Descriptor) -> bool:
    return [f.name for f in kind.fields] == ["seconds", "nanos"]


def _timestamp(message: Any, left: list[int]) -> Any:
    """A time in microseconds and UTC; one that Python cannot represent becomes an object of two
    numbers."""
    try:
        return EPOCH + datetime.timedelta(
            seconds=message.seconds, microseconds=message.nanos // 1000
        )
    except (OverflowError, TypeError):
        return {"seconds": message.seconds, "nanos": message.nanos}

"""Message classes of `tfgnn.proto`, and their text and binary formats.

The classes are built at import from the `.proto` itself. Code that protoc writes refuses older
versions of the protobuf library, and every second newer one; descriptors are read by all of them.
"""

import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from streamd.errors import TFGNNError

MAX_SCHEMA_BYTES = 16 << 20
"""Most bytes of a schema or spec: the text format is parsed by Python, at about 1 MB/s."""
NEEDS_PROTOBUF = "pip install 'streamd[tfgnn]'."
_SOURCE = Path(__file__).with_name("tfgnn.proto")
_PACKAGE = "streamd.tfgnn"
_SCALARS = {"string": 9, "bytes": 12, "int64": 3, "int32": 5, "bool": 8, "float": 2}
"""FieldDescriptorProto.Type by the name of the type in a .proto."""
_STATEMENT = re.compile(
    r"(?P<opens>message|enum|oneof) (?P<name>\w+) {"
    r"|(?P<closes>})"
    r"|map<string, (?P<value>\w+)> (?P<map>\w+) = (?P<map_number>\d+);"
    r"|(?:(?P<label>optional|repeated) )?(?P<type>\w+) (?P<field>\w+) = (?P<number>\d+)"
    r"(?: \[(?P<option>default|packed) = (?P<set>\w+)\])?;"
    r"|(?P<enum>\w+) = (?P<enum_number>\d+);"
    r"|reserved (?P<reserved>[\d, ]+);"
    r"|syntax = .*;|package .*;"
)
"""A line of tfgnn.proto: the part of the language that it uses."""


def message_class(name: str) -> Any:
    """The class of a message of `tfgnn.proto`. Raises: TFGNNError where protobuf is not there."""
    return _classes()[name]


def parse_message(name: str, data: bytes, where: str) -> Any:
    """A message from protobuf text or binary.

    where: what is read, in words, for the error. Data that is text, as its bytes say, is read as
    text. Raises: TFGNNError naming line and column (text), or that the binary is not one.
    """
    if len(data) > MAX_SCHEMA_BYTES:
        raise TFGNNError(
            f"{where} has {len(data)} bytes, a {name} has at most {MAX_SCHEMA_BYTES}.",
            "check that this is the schema and not a table.",
        )
    text = _as_text(data)
    if text is not None:
        return parse_text(name, text, where)
    message = parse_binary(name, data, where)
    try:
        _check_strings(message)
    except UnicodeError as error:
        raise TFGNNError(f"{where} is no {name}: {error}.", "write it again.") from None
    return message


def parse_text(name: str, text: str, where: str) -> Any:
    """A message from protobuf text. Raises: TFGNNError naming line and column."""
    message = message_class(name)()
    from google.protobuf import text_format

    try:
        # The library leaves unknown escapes such as \y to Python, which warns of them.
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            text_format.Parse(text, message)
    except text_format.ParseError as error:
        line, column = error.GetLine(), error.GetColumn()
        place = "" if line is None else f":{line}:{column or 1}"
        # The library puts line, column and sometimes the whole line in front of its words.
        words = re.sub(r"^\d+:\d+ : ('.*': (?=[A-Z]))?", "", str(error)).rstrip(".")
        raise TFGNNError(f"{where}{place}: {words[:200]}.", "correct it there.") from None
    except (ValueError, TypeError) as error:
        raise TFGNNError(f"{where} is no {name}: {error}.", "write it again.") from None
    return message


def parse_binary(name: str, data: bytes, where: str) -> Any:
    """A message from the binary format. Raises: TFGNNError."""
    message = message_class(name)()
    from google.protobuf.message import DecodeError

    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError) as error:
        raise TFGNNError(f"{where} is no {name}: {error}.", "write it again.") from None
    return message


def _check_strings(message: Any) -> None:
    """Refuse strings that are not UTF-8: the binary parser gives them as bytes, and cannot give
    such keys of maps at all. Raises: UnicodeError."""
    for _, value in message.ListFields():
        is_single = isinstance(value, str | bytes | int) or hasattr(value, "ListFields")
        many = [value] if is_single else value
        for one in many.values() if hasattr(many, "values") else many:
            if isinstance(one, bytes):
                one.decode()
            elif hasattr(one, "ListFields"):
                _check_strings(one)


def print_text(message: Any) -> str:
    """A message as protobuf text, its maps in the order of their keys."""
    from google.protobuf import text_format

    return str(text_format.MessageToString(message, as_utf8=True))


def _as_text(data: bytes) -> str | None:
    """What the text format would read, None where these bytes are not text.

    A binary schema begins with a tag below 0x30, which in text is a control character, a space, #
    or no beginning of a name; it also holds other control characters: tags and lengths.
    """
    if re.search(rb"[\x00-\x08\x0e-\x1f\x7f]", data):
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return text if re.match(r"\s*([A-Za-z_#\[]|$)", text) else None


@cache
def _classes() -> dict[str, Any]:
    """All message classes by name. Raises: TFGNNError where protobuf is not there."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise TFGNNError("TF-GNN's schemas need protobuf.", NEEDS_PROTOBUF) from None
    file = descriptor_pb2.FileDescriptorProto(
        name="streamd/tfgnn/schema/tfgnn.proto", package=_PACKAGE, syntax="proto2"
    )
    _fill(file, _SOURCE.read_text())

    # A pool of its own: what others register does not matter.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{message.name}")
        )
        for message in file.message_type
    }


def _fill(file: Any, source: str) -> None:
    """Add the messages and enums of a .proto to a FileDescriptorProto."""
    enums = set(re.findall(r"enum (\w+)", source))
    open_, names = [file], [_PACKAGE]
    oneof = False
    for line in source.splitlines():
        stripped = line.partition("//")[0].strip()
        if not stripped:
            continue
        found = _STATEMENT.fullmatch(stripped)
        assert found, stripped
        top = open_[-1]
        if found["opens"] == "oneof":
            top.oneof_decl.add(name=found["name"])
            oneof = True
        elif found["opens"]:
            inside = len(open_) > 1
            messages = top.nested_type if inside else top.message_type
            open_.append((messages if found["opens"] == "message" else top.enum_type).add())
            open_[-1].name = found["name"]
            names.append(found["name"])
        elif found["closes"] and oneof:
            oneof = False
        elif found["closes"]:
            open_.pop()
            names.pop()
        elif found["map"]:
            _add_map(top, found, ".".join(names))
        elif found["field"]:
            field = _add_field(top, found, enums)
            if oneof:
                field.oneof_index = len(top.oneof_decl) - 1
        elif found["enum"]:
            top.value.add(name=found["enum"], number=int(found["enum_number"]))
        elif found["reserved"]:
            for number in map(int, found["reserved"].split(",")):
                top.reserved_range.add(start=number, end=number + 1)


def _add_field(message: Any, found: re.Match[str], enums: set[str]) -> Any:
    """Add a field to a message. A type that is not a scalar is looked up from the inside out."""
    field = message.field.add(name=found["field"], number=int(found["number"]))
    field.label = 3 if found["label"] == "repeated" else 1
    if found["type"] in _SCALARS:
        field.type = _SCALARS[found["type"]]
    else:
        field.type = 14 if found["type"] in enums else 11
        field.type_name = found["type"]
    if found["option"] == "default":
        field.default_value = found["set"]
    elif found["option"] == "packed":
        field.options.packed = found["set"] == "true"
    return field


def _add_map(message: Any, found: re.Match[str], path: str) -> None:
    """Add a map from strings to messages: a repeated message of a key and a value."""
    entry_name = "".join(part.title() for part in found["map"].split("_")) + "Entry"
    entry = message.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=11, type_name=found["value"])
    message.field.add(
        name=found["map"],
        number=int(found["map_number"]),
        label=3,
        type=11,
        type_name=f".{path}.{entry_name}",
    )

"""Message classes of `tfgnn.proto`, and their text and binary formats.

The classes are built at import from `tfgnn.binpb`, the FileDescriptorSet that `make proto` writes.
Code that protoc writes refuses older versions of the protobuf library, and every second newer one;
descriptors are read by all of them. Importing this module raises TFGNNError without protobuf.

A map of a message has no order: iterate over `sorted(one.items())`. Reading a key that a map of
messages lacks adds it, so ask with `in` first.
"""

import re
import warnings
from pathlib import Path
from typing import Any

from streamd.errors import TFGNNError

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
    from google.protobuf.message import DecodeError
except ImportError:
    raise TFGNNError(
        "TF-GNN's schemas need protobuf.", "pip install 'streamd-gnn[tfgnn]'."
    ) from None

MAX_SCHEMA_BYTES = 16 << 20
"""Most bytes of a schema or spec: the text format is parsed by Python, at about 1 MB/s."""


def _message_classes() -> dict[str, Any]:
    """The classes of the messages of `tfgnn.binpb`, by name."""
    data = Path(__file__).with_name("tfgnn.binpb").read_bytes()
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(data).file
    # A pool of its own: what others register does not matter.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = message_factory.GetMessageClassesForFiles([file.name], pool)
    for one in found.values():
        # Pickles, such as those of Beam's workers, name a class by its module.
        one.__module__ = __name__
    return {one.__name__: one for one in found.values()}


_CLASSES = _message_classes()
GraphSchema: Any = _CLASSES["GraphSchema"]
Context: Any = _CLASSES["Context"]
NodeSet: Any = _CLASSES["NodeSet"]
EdgeSet: Any = _CLASSES["EdgeSet"]
Feature: Any = _CLASSES["Feature"]
SamplingSpec: Any = _CLASSES["SamplingSpec"]
SamplingOp: Any = _CLASSES["SamplingOp"]
Example: Any = _CLASSES["Example"]


def parse_message(kind: Any, data: bytes, where: str) -> Any:
    """A message from protobuf text or binary, without unknown fields.

    kind: its class. where: what is read, in words, for the error. Data that is text, as its bytes
    say, is read as text. Raises: TFGNNError naming line and column (text), or that the binary is
    not one.
    """
    name = kind.__name__
    if len(data) > MAX_SCHEMA_BYTES:
        raise TFGNNError(
            f"{where} has {len(data)} bytes, a {name} has at most {MAX_SCHEMA_BYTES}.",
            "check that this is the schema and not a table.",
        )
    text = _as_text(data)
    if text is not None:
        return parse_text(kind, text, where)
    message = parse_binary(kind, data, where)
    message.DiscardUnknownFields()
    try:
        _check_strings(message)
    except UnicodeError as error:
        raise TFGNNError(f"{where} is no {name}: {error}.", "write it again.") from None
    return message


def parse_text(kind: Any, text: str, where: str) -> Any:
    """A message from protobuf text. Raises: TFGNNError naming line and column."""
    message = kind()
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
        raise TFGNNError(f"{where} is no {kind.__name__}: {error}.", "write it again.") from None
    return message


def parse_binary(kind: Any, data: bytes, where: str) -> Any:
    """A message from the binary format. Raises: TFGNNError."""
    message = kind()
    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError) as error:
        raise TFGNNError(f"{where} is no {kind.__name__}: {error}.", "write it again.") from None
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

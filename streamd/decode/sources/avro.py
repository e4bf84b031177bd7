"""Reads Avro values with fastavro, under schemas from untrusted producers.

A schema is copied part by part before fastavro gets it, and the memory that each byte of its values
may need is bounded: an array of records without fields needs memory for no bytes at all.
"""

import io
import json
import math
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import fastavro

from streamd.errors import BadEvent

MAX_DEPTH = 32
"""Maximum nesting of a schema, with its named types followed: twice the steps that a path may
have."""
MAX_PARTS = 20_000
"""Maximum parts of a schema, including those of its references."""
MAX_MEMORY = 210_000_000
"""Maximum bytes of the objects of one record."""
MAX_FIXED_MEMORY = 200_000
"""Maximum bytes of the objects of a value, without the contents of its arrays, maps and text."""
RATES = (50, 100, 200)
"""Bytes of memory that a byte of a value may need. Under the first, a record may have 4 MiB."""
ROOT = "streamd_root"
"""Name of the record that is put around a schema of another type."""
DECIMAL = "streamd-decimal"
"""streamd's own name of the logical type: fastavro itself takes minutes for a long decimal."""
MAX_DECIMAL_BYTES = 32
"""Maximum bytes of a decimal: 77 digits. A longer one becomes infinity, which no field accepts."""
UUID = "streamd-uuid"
"""streamd's own name of the logical type of bytes: fastavro supports only that of text."""
UUID_BYTES = 16
PRIMITIVES = {
    # Name: minimum bytes, and memory of such a value. Python caches text of up to one character;
    # longer text takes less than the lowest rate for each byte.
    "null": (0, 0),
    "boolean": (1, 0),
    "int": (1, 32),
    "long": (1, 32),
    "float": (4, 24),
    "double": (8, 24),
    "bytes": (1, 0),
    "string": (1, 0),
}
SLOT = 16
"""Bytes of an element in a growing list."""
FIELD = 50
"""Bytes of an entry in a growing dict."""
OBJECT = 64
"""Bytes of an empty list or dict."""


def compile_avro(text: str, referenced: Iterable[str]) -> Callable[[bytes, int], Any]:
    """Make a reader of the values of a schema.

    Args: text: the schema, as JSON; referenced: the schemas that it needs, each after those that it
    needs itself.
    Returns: reads the value that begins at an index of some bytes and ends with them. It raises
    BadEvent if there is no such value.
    Raises: BadEvent if the schema cannot be used.
    """
    named: dict[str, Any] = {}
    copier = _Copier()
    try:
        for other in referenced:
            fastavro.parse_schema(copier.copy(json.loads(other)), named)
        root = copier.copy(json.loads(text))
        is_record = isinstance(root, dict) and "fields" in root
        if not is_record:
            # fastavro resolves named types only inside a record.
            root = {"type": "record", "name": ROOT, "fields": [{"name": "of", "type": root}]}
        schema = fastavro.parse_schema(root, named)
        most = _most_bytes(schema, named)
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
        fastavro.schema.SchemaParseException,
    ) as error:
        if isinstance(error, fastavro.schema.UnknownType):
            raise BadEvent("bad_schema", f"it names the unknown type {error}"[:300]) from None
        raise BadEvent("bad_schema", f"it is no schema of Avro: {error}"[:300]) from None
    read = fastavro.schemaless_reader

    def decode(value: bytes, start: int) -> Any:
        # Refuse before fastavro makes objects.
        if len(value) > most:
            raise BadEvent(
                "bad_avro",
                f"{len(value)} bytes; of this schema at most {most}, since arrays of so small "
                "values take too much memory",
            )
        stream = io.BytesIO(value)
        stream.seek(start)
        try:
            decoded = read(stream, schema, None)
        except (EOFError, ValueError, LookupError, TypeError, OverflowError) as error:
            raise BadEvent("bad_avro", f"not a value of its schema: {error}"[:300]) from None
        # Bytes after a value mean that another schema wrote it.
        if stream.tell() != len(value):
            left = len(value) - stream.tell()
            raise BadEvent("bad_avro", f"not a value of its schema: {left} bytes are left")
        return decoded if is_record else decoded["of"]

    return decode


class _Copier:
    """Copies schemas without the parts that do not affect the encoding of values."""

    def __init__(self) -> None:
        self._num_parts = 0

    def copy(self, schema: Any, depth: int = 0) -> Any:
        """Copy a schema. Raises: BadEvent if it is too large; KeyError, TypeError."""
        self._num_parts += 1
        if depth > MAX_DEPTH or self._num_parts > MAX_PARTS:
            raise BadEvent(
                "bad_schema", f"it is nested deeper than {MAX_DEPTH} or has over {MAX_PARTS} parts"
            )
        if isinstance(schema, str):
            return schema
        if isinstance(schema, list):
            return [self.copy(branch, depth + 1) for branch in schema]
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.copy(kind, depth + 1)
        copied: dict[str, Any] = {"type": kind}
        for key in ("name", "namespace"):
            if schema.get(key) is not None and kind in ("record", "error", "enum", "fixed"):
                copied[key] = _text(schema[key])
        if kind in ("record", "error"):
            copied["fields"] = [
                {"name": _text(f["name"]), "type": self.copy(f["type"], depth + 1)}
                for f in schema["fields"]
            ]
        elif kind == "enum":
            copied["symbols"] = [_text(symbol) for symbol in schema["symbols"]]
        elif kind == "fixed":
            copied["size"] = _natural(schema["size"])
        elif kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            copied[part] = self.copy(schema[part], depth + 1)
        # Values of other logical types are read as they are encoded: a timestamp is a number.
        if schema.get("logicalType") == "decimal" and kind in ("bytes", "fixed"):
            copied |= {"logicalType": DECIMAL, "scale": _natural(schema.get("scale", 0))}
        if schema.get("logicalType") == "uuid" and copied.get("size") == UUID_BYTES:
            copied["logicalType"] = UUID
        return copied


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is no text")
    return value


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError("a size is no number")
    return value


def _most_bytes(schema: Any, named: Mapping[str, Any]) -> int:
    """The maximum bytes of a value of a schema. Raises: BadEvent."""
    for rate in RATES:
        memory = _Memory(named, rate)
        fixed = memory.of(schema)
        if memory.is_bounded:
            if fixed > MAX_FIXED_MEMORY:
                raise BadEvent("bad_schema", "its values have too many fields")
            return MAX_MEMORY // rate
    raise BadEvent(
        "bad_schema",
        "arrays or maps of its values may need hundreds of times their bytes in memory",
    )


class _Memory:
    """Bounds the memory of values of a schema beyond `rate` bytes for each byte of the value.

    is_bounded: whether no array or map takes more than that, at any length.
    """

    def __init__(self, named: Mapping[str, Any], rate: int) -> None:
        self._named = named
        self._rate = rate
        self._known: dict[str, int] = {}
        self._open: list[str] = []
        self.is_bounded = True

    def of(self, schema: Any, depth: int = 0) -> int:
        """Bytes of memory less `rate` times the minimum bytes. Raises: BadEvent."""
        if depth > 4 * MAX_DEPTH:
            raise BadEvent("bad_schema", "its types are nested too deeply")
        if isinstance(schema, list):
            return max((self.of(branch, depth + 1) for branch in schema), default=0) - self._rate
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind in PRIMITIVES:
            least, memory = PRIMITIVES[kind]
            return memory - self._rate * least
        if not isinstance(schema, dict):
            return self._of_name(kind, depth)
        if kind == "enum":
            return -self._rate
        if kind == "fixed":
            return OBJECT - (self._rate - 1) * int(schema["size"])
        if kind in ("record", "error"):
            # Inside its own record, a type occurs only as a name.
            return self._of_record(schema, depth)
        if kind not in ("array", "map"):
            return self._of_name(kind, depth)
        item = self.of(schema["items" if kind == "array" else "values"], depth + 1)
        item += SLOT if kind == "array" else FIELD + OBJECT - self._rate
        if item > 0:
            self.is_bounded = False
        return OBJECT - self._rate

    def _of_name(self, name: str, depth: int) -> int:
        if name in self._open:
            # Its values may be nested without limit, and fastavro reads them recursively on the C
            # stack.
            raise BadEvent("bad_schema", f"{name[:100]} contains itself")
        if name not in self._known:
            self._known[name] = self.of(self._named[name], depth + 1)
        return self._known[name]

    def _of_record(self, schema: Mapping[str, Any], depth: int) -> int:
        self._open.append(schema["name"])
        fields = [self.of(field["type"], depth + 1) for field in schema["fields"]]
        self._open.pop()
        # Each entry counts, even if its value has no bytes.
        return OBJECT + sum(fields) + FIELD * len(fields)


def _decimal(data: bytes, writer: Mapping[str, Any], reader: Any = None) -> int | float:
    """Convert a decimal to a number, to an integer if it is whole, since databases number rows
    so."""
    if len(data) > MAX_DECIMAL_BYTES or writer["scale"] > 2 * MAX_DECIMAL_BYTES:
        return math.inf
    number: int = int.from_bytes(data, "big", signed=True)
    whole, rest = divmod(number, 10 ** writer["scale"])
    return number / int(10 ** writer["scale"]) if rest else whole


def _uuid(data: bytes, writer: Mapping[str, Any], reader: Any = None) -> uuid.UUID:
    return uuid.UUID(bytes=data)


fastavro.read.LOGICAL_READERS[f"fixed-{UUID}"] = _uuid
fastavro.read.LOGICAL_READERS[f"bytes-{DECIMAL}"] = _decimal
fastavro.read.LOGICAL_READERS[f"fixed-{DECIMAL}"] = _decimal

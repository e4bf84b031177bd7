"""The events that producers send, and the splitting of values of each content type into events."""

import io
import operator
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, get_args

import msgspec

from streamd.errors import BadEvent

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
OWN_EVENT = "application/vnd.streamd.event+json"
"""One of streamd's own events in a mapped topic, such as a replayed dead letter."""
OWN_EVENT_US = f"{OWN_EVENT};time_unit=us"
"""The same with its time in microseconds: times of a mapped topic may be finer than the stream's
unit."""
OWN_ROW = "application/vnd.streamd.row+json"
"""One record of a mapped topic as a JSON object, in a topic of any format."""
CONTENT_TYPES = (JSON, NDJSON, ARROW, OWN_EVENT)
EventType = Literal["edge", "node", "label", "delete"]
TYPES = get_args(EventType)
TOO_DEEP = "nested deeper than the decoder goes"
EMPTY_VALUE = "the value is empty"
REFUSED_HEADER = "streamd-refused-batch"
"""Header of a record that replaces a batch that could not be read; its value is the reason."""


class WireEvent(msgspec.Struct, gc=False):
    """An event of any type (docs/how-it-works.md).

    `time` may be a float here, so that the error can name the field. Keys may be whole floats.
    `features` are numbers, or an object by name.
    """

    type: EventType = "edge"
    src: int | float | str | None = None
    dst: int | float | str | None = None
    time: int | float | None = None
    features: list[float] | dict[str, Any] | None = None
    id: int | float | str | None = None
    node: int | float | str | None = None
    target: list[float] | None = None
    edge_set: str | None = None
    node_set: str | None = None


class StrictEvent(WireEvent, forbid_unknown_fields=True):
    """An event without unknown fields."""


class OddEvent(WireEvent):
    """An event with unknown fields."""


FIELDS = WireEvent.__struct_fields__
Items = Sequence[bytes | msgspec.Raw]
"""Unparsed JSON objects."""
MAX_NAMED_BYTES = 65_536
"""Maximum size of an event that is parsed again for the names of its fields, which takes time."""
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
JSON_BLANKS = b" \t\r\n"
BRACES = ({ord("{")}, {ord("}")})
_first, _last = operator.itemgetter(0), operator.itemgetter(-1)
FAILURES = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for values that cannot be parsed."""


def fields(raw: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The unparsed fields of a JSON object; {} if the value is not an object, or is too large."""
    if len(memoryview(raw)) > MAX_NAMED_BYTES:
        return {}
    try:
        return _object.decode(raw)
    except FAILURES:
        return {}


def unknown_fields(items: Iterable[bytes | msgspec.Raw]) -> list[str]:
    """The unknown fields of the first item that has some."""
    unknown = ([name for name in fields(item) if name not in FIELDS] for item in items)
    return next(filter(None, unknown), [])


def lines(value: bytes, most: int) -> list[bytes]:
    """The non-blank lines of NDJSON. Raises: BadEvent if there are more than `most`."""
    # Line by line, so that a record of many lines is refused before it takes memory.
    kept: list[bytes] = []
    for line in io.BytesIO(value):
        if line.strip():
            if len(kept) == most:
                raise BadEvent("too_many_events", f"more than {most} lines")
            kept.append(line.removesuffix(b"\n"))
    return kept


def object_lines(values: Sequence[bytes]) -> bytes | None:
    """Join values to lines, for a parser that also accepts several objects, or a part of one, on a
    line.

    If the parser finds as many objects as there are values, each value is exactly one object: an
    object that is cut after a `}` cannot continue with a `{`.
    Returns: None if some value is not a single line with a brace at both ends.
    """
    if not _have_braces(values):
        # Ignore blanks around a value.
        values = [value.strip(JSON_BLANKS) for value in values]
        if not _have_braces(values):
            return None
    joined = b"\n".join(values)
    return joined if joined.count(b"\n") == len(values) - 1 else None


def _have_braces(values: Sequence[bytes]) -> bool:
    """Whether each value begins and ends with a brace."""
    if not all(values):
        return False
    return (set(map(_first, values)), set(map(_last, values))) == BRACES


def json_error(error: Exception, raw: bytes | msgspec.Raw) -> BadEvent:
    """The error of a value that is not JSON. error: of the parser. raw: the value."""
    is_empty = not bytes(memoryview(raw)).strip()
    return BadEvent("bad_json", EMPTY_VALUE if is_empty else str(error))


def elements(value: bytes) -> Sequence[msgspec.Raw]:
    """The unparsed elements of a JSON array. Raises: BadEvent if the value is no array."""
    try:
        return _raws.decode(value)
    except RecursionError:
        raise BadEvent("too_deep", TOO_DEEP) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise json_error(error, value) from None


def converted(row: dict[str, Any]) -> WireEvent:
    """Convert a row of a table to an event. Raises: BadEvent."""
    try:
        # An empty cell of a table means that the event lacks the field.
        return msgspec.convert({k: v for k, v in row.items() if v is not None}, WireEvent)
    except msgspec.ValidationError as error:
        raise misfit(error) from None


def misfit(error: msgspec.ValidationError) -> BadEvent:
    """Make an error of msgspec's message, without its `$.` and without the value of a wrong
    `type`."""
    # Its messages end in the path of the field: "Expected `int`, got `str` - at `$.src`".
    match = re.fullmatch(r"(.*) - at `\$\.?(.*)`", str(error), re.DOTALL)
    what, where = match.groups() if match else (str(error), "")
    # Errors contain no values, so leave out the wrong type.
    if where == "type":
        return BadEvent("unknown_type", f"type is none of {', '.join(TYPES)}")
    what = what.replace("`", "").replace(" | null", "").replace(" | ", " or ").lower()
    what = what.replace("int or float or str", "int or str")
    return BadEvent("wrong_type", f"{where}: {what}" if where else f"an event: {what}")


class Parser(Protocol):
    """Parses many objects in one call."""

    def of_lines(self, values: Sequence[bytes]) -> Sequence[Any] | None: ...

    def of_array(self, value: bytes) -> Sequence[Any] | None: ...


def has_several(value: bytes, is_lines: bool) -> bool:
    """Whether a JSON value may contain several events. is_lines: whether it is NDJSON."""
    return is_lines or value.lstrip()[:1] == b"["


def parse_several(
    parser: Parser, value: bytes, is_lines: bool, most: int
) -> tuple[Sequence[Any] | None, Items]:
    """Parse the objects of a value in one call.

    Returns: the parsed objects, None if one does not fit; and the unparsed ones, which may be empty
    if the others are not None. Raises: BadEvent.
    """
    if is_lines:
        items = lines(value, most)
        return parser.of_lines(items), items
    parsed = parser.of_array(value)
    return parsed, () if parsed else elements(value)

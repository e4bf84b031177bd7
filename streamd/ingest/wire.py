"""Events as producers send them, and how values of each content type are split into them."""

import io
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import msgspec

from streamd.errors import BadEvent

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
CONTENT_TYPES = (JSON, NDJSON, ARROW)
EventType = Literal["edge", "node", "label", "delete"]
TYPES = get_args(EventType)
TOO_DEEP = "nested deeper than the decoder goes"


class WireEvent(msgspec.Struct, gc=False):
    """An event of any type (DESIGN section 3). `time` admits floats here so that they can be
    refused by name."""

    type: EventType = "edge"
    src: int | str | None = None
    dst: int | str | None = None
    time: int | float | None = None
    features: list[float] | None = None
    id: int | str | None = None
    node: int | str | None = None
    target: list[float] | None = None


class WireEdge(msgspec.Struct, gc=False):
    """An edge and nothing but an edge: what the fast path takes; anything else goes by way of
    `WireEvent`."""

    src: int | str
    dst: int | str
    time: int | None = None
    features: list[float] | None = None
    type: Literal["edge"] = "edge"
    id: None = None
    node: None = None
    target: None = None


class StrictEvent(WireEvent, forbid_unknown_fields=True):
    """The same, and no other field."""


class StrictEdge(WireEdge, forbid_unknown_fields=True):
    """The same, and no other field."""


FIELDS = WireEvent.__struct_fields__
MAX_NAMED_BYTES = 65_536
"""Larger events are not read once more for the names of their fields."""
_event = msgspec.json.Decoder(WireEvent)
_strict_event = msgspec.json.Decoder(StrictEvent)
_edge = msgspec.json.Decoder(WireEdge)
_strict_edge = msgspec.json.Decoder(StrictEdge)
_edges = msgspec.json.Decoder(list[WireEdge])
_strict_edges = msgspec.json.Decoder(list[StrictEdge])
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FAILURES = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_UNKNOWN = "Object contains unknown field"


class EventReader:
    """Parses events, whatever other fields they have. Owner: the decoder.

    While `watches`, the parser is one that knows no other fields, which costs nothing where there
    are none; `met_unknown` then says whether the last thing read had some.
    """

    def __init__(self) -> None:
        self.watches = True
        self.met_unknown = False

    def edges_of_lines(self, values: Sequence[bytes]) -> list[WireEdge] | None:
        """One edge per value, all parsed in one go; None where any is not exactly one edge on one
        line."""
        lines = b"\n".join(values)
        if lines.count(b"\n") != len(values) - 1:
            return None
        try:
            edges = self._read(_strict_edge.decode_lines, _edge.decode_lines, lines)
        except _FAILURES:
            return None
        return edges if len(edges) == len(values) else None

    def edges_of_array(self, value: bytes) -> list[WireEdge] | None:
        """The edges of a JSON array; None where it is not one."""
        try:
            edges: list[WireEdge] = self._read(_strict_edges.decode, _edges.decode, value)
        except _FAILURES:
            return None
        return edges

    def parse(self, raw: bytes | msgspec.Raw) -> WireEvent:
        """One event. Raises: BadEvent."""
        try:
            event: WireEvent = self._read(_strict_event.decode, _event.decode, raw)
        except msgspec.ValidationError as error:
            raise _misfit(error) from None
        except RecursionError:
            raise BadEvent("too_deep", TOO_DEEP) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadEvent("bad_json", str(error)) from None
        return event

    def _read(self, strict: Any, lenient: Any, value: bytes | msgspec.Raw) -> Any:
        self.met_unknown = False
        if not self.watches:
            return lenient(value)
        try:
            return strict(value)
        except msgspec.ValidationError as error:
            if not str(error).startswith(_UNKNOWN):
                raise
        found = lenient(value)
        self.met_unknown = True
        return found


def fields(raw: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The fields of a JSON object, not yet parsed; none where it is not one, or too large to look."""
    if len(memoryview(raw)) > MAX_NAMED_BYTES:
        return {}
    try:
        return _object.decode(raw)
    except _FAILURES:
        return {}


def unknown_fields(items: Iterable[bytes | msgspec.Raw]) -> list[str]:
    """Names of fields that no event has, in the first item that has some."""
    found = ([name for name in fields(item) if name not in FIELDS] for item in items)
    return next(filter(None, found), [])


def lines(value: bytes, most: int) -> list[bytes]:
    """The lines of NDJSON that are not blank. Raises: BadEvent at the line after `most`."""
    found: list[bytes] = []
    for line in io.BytesIO(value):
        if line.strip():
            if len(found) == most:
                raise BadEvent("too_many_events", f"more than {most} lines")
            found.append(line.removesuffix(b"\n"))
    return found


def elements(value: bytes) -> Sequence[msgspec.Raw]:
    """The elements of a JSON array, not yet parsed. Raises: BadEvent where it is not an array."""
    try:
        return _raws.decode(value)
    except RecursionError:
        raise BadEvent("too_deep", TOO_DEEP) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadEvent("bad_json", str(error)) from None


def content_type(headers: Sequence[tuple[str, bytes | None]]) -> str:
    """The content type that a record's headers name, JSON without one. Raises: BadEvent where it is
    not known."""
    found = JSON
    for name, content in headers:
        if name.lower() == "content-type":
            found = (content or b"").decode("latin-1").split(";")[0].strip().lower()
    if found not in CONTENT_TYPES:
        raise BadEvent(
            "unknown_content_type",
            f"content-type {found[:80]!r}, known are {', '.join(CONTENT_TYPES)}",
        )
    return found


def converted(row: dict[str, Any]) -> WireEvent:
    """A row of a table as an event. Raises: BadEvent."""
    try:
        return msgspec.convert({k: v for k, v in row.items() if v is not None}, WireEvent)
    except msgspec.ValidationError as error:
        raise _misfit(error) from None


def _misfit(error: msgspec.ValidationError) -> BadEvent:
    """What msgspec says, without its `$.` and without the value of a wrong `type`."""
    said = re.fullmatch(r"(.*) - at `\$\.?(.*)`", str(error), re.DOTALL)
    what, where = said.groups() if said else (str(error), "")
    if where == "type":
        return BadEvent("unknown_type", f"type is none of {', '.join(TYPES)}")
    what = what.replace("`", "").replace(" | null", "").replace(" | ", " or ").lower()
    return BadEvent("wrong_type", f"{where}: {what}" if where else f"an event: {what}")

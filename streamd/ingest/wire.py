"""Events as producers send them, and how values of each content type are split into them."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from streamd.errors import BadEvent

JSON, NDJSON, ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
CONTENT_TYPES = (JSON, NDJSON, ARROW)
TOO_DEEP = "nested deeper than the decoder goes"


class WireEvent(msgspec.Struct, gc=False):
    """An event of any type (DESIGN section 3). `time` admits floats here so that they can be refused by name."""

    type: Literal["edge", "node", "label", "delete"] = "edge"
    src: int | str | None = None
    dst: int | str | None = None
    time: int | float | None = None
    features: list[float] | None = None
    id: int | str | None = None
    node: int | str | None = None
    target: list[float] | None = None


class WireEdge(msgspec.Struct, gc=False):
    """An edge and nothing but an edge: what the fast path takes; anything else goes by way of `WireEvent`."""

    src: int | str
    dst: int | str
    time: int | None = None
    features: list[float] | None = None
    type: Literal["edge"] = "edge"
    id: None = None
    node: None = None
    target: None = None


_event = msgspec.json.Decoder(WireEvent)
_edge = msgspec.json.Decoder(WireEdge)
_edges = msgspec.json.Decoder(list[WireEdge])
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_FAILURES = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def edges_of_lines(values: Sequence[bytes]) -> list[WireEdge] | None:
    """One edge per value, all parsed in one go; None where any is not exactly one edge on one line."""
    lines = b"\n".join(values)
    if lines.count(b"\n") != len(values) - 1:
        return None
    try:
        edges = _edge.decode_lines(lines)
    except _FAILURES:
        return None
    return edges if len(edges) == len(values) else None


def edges_of_array(value: bytes) -> list[WireEdge] | None:
    """The edges of a JSON array; None where it is not one."""
    try:
        return _edges.decode(value)
    except _FAILURES:
        return None


def parse(raw: bytes | msgspec.Raw) -> WireEvent:
    """One event. Raises: BadEvent."""
    try:
        return _event.decode(raw)
    except msgspec.ValidationError as error:
        raise _misfit(error) from None
    except RecursionError:
        raise BadEvent("too_deep", TOO_DEEP) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadEvent("bad_json", str(error)) from None


def elements(value: bytes) -> Sequence[msgspec.Raw]:
    """The elements of a JSON array, not yet parsed. Raises: BadEvent where it is not an array."""
    try:
        return _raws.decode(value)
    except RecursionError:
        raise BadEvent("too_deep", TOO_DEEP) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadEvent("bad_json", str(error)) from None


def content_type(headers: Sequence[tuple[str, bytes | None]]) -> str:
    """The content type that a record's headers name, JSON without one. Raises: BadEvent where it is not known."""
    found = JSON
    for name, content in headers:
        if name.lower() == "content-type":
            found = (content or b"").decode("latin-1").split(";")[0].strip().lower()
    if found not in CONTENT_TYPES:
        raise BadEvent("unknown_content_type", f"content-type {found[:80]!r}, known are {', '.join(CONTENT_TYPES)}")
    return found


def converted(row: dict[str, Any]) -> WireEvent:
    """A row of a table as an event. Raises: BadEvent."""
    try:
        return msgspec.convert({k: v for k, v in row.items() if v is not None}, WireEvent)
    except msgspec.ValidationError as error:
        raise _misfit(error) from None


def _misfit(error: msgspec.ValidationError) -> BadEvent:
    return BadEvent("unknown_type" if "`$.type`" in str(error) else "wrong_type", str(error))

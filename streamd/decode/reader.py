"""Parses streamd's own events. Edges are parsed many at a time, with a type for each set."""

import functools
import operator
import types
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from streamd.decode.event_sets import EventSets, SetFeatures
from streamd.decode.notices import Notices
from streamd.decode.wire import (
    FAILURES,
    TOO_DEEP,
    OddEvent,
    StrictEvent,
    WireEvent,
    json_error,
    misfit,
    object_lines,
)
from streamd.errors import BadEvent


class WireEdge(Protocol):
    """An edge without the fields of other types, for the fast path; see `WireEvent`.

    features: numbers, an object of `SetFeatures.type`, or None. set_number: of its edge set.
    """

    src: int | str
    dst: int | str
    time: int | None
    features: Any
    set_number: int


def _edge_type(name: str, number: int, features: SetFeatures, is_only: bool, strict: bool) -> Any:
    """The msgspec type of edges of one set.

    is_only: whether they need not name the set. strict: whether unknown fields are refused.
    """
    by_name = features.type or None
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        ("src", int | str),
        ("dst", int | str),
        ("time", int | None, None),
        ("features", list[float] | by_name | None, None),
        ("type", Literal["edge"], "edge"),
        ("id", None, None),
        ("node", None, None),
        ("target", None, None),
        ("node_set", None, None),
    ]
    options: dict[str, Any] = {"tag_field": "edge_set", "tag": name}
    if is_only:
        fields.append(("edge_set", Literal[name] | None, None))
        options = {}
    return msgspec.defstruct(
        "Edge",
        fields,
        namespace={"set_number": number},
        gc=False,
        forbid_unknown_fields=strict,
        **options,
    )


class _EdgeDecoders:
    """Decoders of edges of all sets, one for a single edge and one for arrays."""

    def __init__(self, sets: EventSets, strict: bool) -> None:
        is_only = sets.schema.num_edge_sets == 1
        of_sets = [
            _edge_type(name, i, sets.of_edges[i], is_only, strict)
            for i, name in enumerate(sets.edge_names)
        ]
        # `edge_set` is the tag of the union of types.
        of_any = functools.reduce(operator.or_, of_sets)
        self.one = msgspec.json.Decoder(of_any)
        self.array = msgspec.json.Decoder(types.GenericAlias(list, (of_any,)))


_UNKNOWN = "Object contains unknown field"
_event = msgspec.json.Decoder(WireEvent)
_odd_event = msgspec.json.Decoder(OddEvent)
_strict_event = msgspec.json.Decoder(StrictEvent)


class EventReader:
    """Parses events, which may have unknown fields. Owner: the decoder.

    While `notices` reports unknown fields, a strict parser is tried first; without such fields that
    costs nothing more. met_unknown: whether the last value had some.
    """

    def __init__(self, sets: EventSets, notices: Notices) -> None:
        self.met_unknown = False
        self._notices = notices
        self._strict = _EdgeDecoders(sets, True)
        self._lenient = _EdgeDecoders(sets, False)

    def of_lines(self, values: Sequence[bytes]) -> list[WireEdge] | None:
        """Parse one edge of each value in one call; None unless each value is one edge on one
        line."""
        lines = object_lines(values)
        if lines is None:
            return None
        try:
            edges = self._read(self._strict.one.decode_lines, self._lenient.one.decode_lines, lines)
        except FAILURES:
            return None
        # `object_lines` explains why equal counts prove one object a line.
        return edges if len(edges) == len(values) else None

    def of_array(self, value: bytes) -> list[WireEdge] | None:
        """Parse a JSON array of edges; None if the value is anything else, or empty."""
        try:
            edges: list[WireEdge] = self._read(
                self._strict.array.decode, self._lenient.array.decode, value
            )
        except FAILURES:
            return None
        return edges or None

    def parse(self, raw: bytes | msgspec.Raw) -> WireEvent:
        """Parse one event. While `notices` reports unknown fields, an event with some is an
        `OddEvent`. Raises: BadEvent."""
        lenient = _odd_event if self._notices.watches_fields else _event
        try:
            # A ValidationError is a DecodeError too, so it must be caught first.
            event: WireEvent = self._read(_strict_event.decode, lenient.decode, raw)
        except msgspec.ValidationError as error:
            raise misfit(error) from None
        except RecursionError:
            raise BadEvent("too_deep", TOO_DEEP) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise json_error(error, raw) from None
        return event

    def _read(self, strict: Any, lenient: Any, value: bytes | msgspec.Raw) -> Any:
        """Parse by `strict`, or by `lenient` if there are unknown fields. Raises the errors of
        both."""
        self.met_unknown = False
        if not self._notices.watches_fields:
            return lenient(value)
        try:
            return strict(value)
        except msgspec.ValidationError as error:
            # The lenient parser accepts only unknown fields in addition.
            if not str(error).startswith(_UNKNOWN):
                raise
        parsed = lenient(value)
        self.met_unknown = True
        return parsed

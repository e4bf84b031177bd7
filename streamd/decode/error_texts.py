"""Writes error texts of refused events: the cause, the fields that were found and a valid example.

They contain names of the sender's fields, never values.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from streamd.decode.event_sets import EventSets, SetFeatures
from streamd.decode.notices import named
from streamd.decode.time_units import DATES, UNITS_NS
from streamd.decode.wire import FIELDS, TYPES, fields
from streamd.errors import BadEvent

MAX_TEXT = 490
"""Maximum characters of a text; local dead letters keep 500."""
MAX_SHOWN = 4
"""Maximum numbers in an example; for more it gives their number."""
MAX_KEPT = 256
"""Maximum texts that are cached: senders repeat the same few mistakes."""
EXPLAINED = (
    "missing_field",
    "wrong_type",
    "unknown_type",
    "unknown_set",
    "feature_width",
    "unsupported",
)
"""Reasons with a text that contains the names of the fields and an example of a valid event."""
OTHER_NAMES = {
    "src": (
        "user",
        "userid",
        "uid",
        "source",
        "sourceid",
        "srcid",
        "from",
        "fromid",
        "sender",
        "senderid",
        "customer",
        "customerid",
        "account",
        "accountid",
        "u",
    ),
    "dst": (
        "item",
        "itemid",
        "iid",
        "destination",
        "destinationid",
        "dstid",
        "to",
        "toid",
        "receiver",
        "receiverid",
        "product",
        "productid",
        "merchant",
        "merchantid",
        "v",
    ),
    "time": (
        "ts",
        "timestamp",
        "t",
        "datetime",
        "eventtime",
        "createdat",
        "unixtime",
        "timestampms",
    ),
}
"""Common other names for the fields of an edge, in lower case, without `_` and `-`."""
ENVELOPE = ("before", "after", "op")
"""Fields of every change event of Debezium."""


class Explainer:
    """Writes the error texts for events of declared sets. Owner: the decoder."""

    def __init__(
        self, sets: EventSets, time_unit: str, columns: Callable[[], Sequence[str]] = tuple
    ) -> None:
        """time_unit: of the sender's numeric times, one of `UNIT_WORDS`. columns: returns the names
        in the sender's row, if the event was made from some of its columns."""
        self._sets = sets
        self._columns = columns
        # The time in examples, 2023-01-01.
        is_date = time_unit == DATES
        self._time = 20_230_101 if is_date else 1_672_531_200_123_000_000 // UNITS_NS[time_unit]
        self._texts: dict[tuple[str, str, str, int], str] = {}

    def text(self, bad: BadEvent, raw: bytes | msgspec.Raw) -> str:
        """Explain the error of an event or of a whole value, in at most `MAX_TEXT` characters.

        raw: its bytes.
        """
        if bad.reason == "bad_json":
            return self._join(str(bad), foreign(bytes(memoryview(raw)[:64])), "edge", 0)
        if bad.reason not in EXPLAINED:
            return str(bad)[:MAX_TEXT]

        # Name the fields that were sent, and how to map them.
        found = fields(raw)
        sent = bytes(found.get("type", b""))
        kind = next((t for t in TYPES if sent == f'"{t}"'.encode()), "edge")
        # The type of an edge may be left out, and /v1/events adds it.
        names = [
            name
            for name, value in found.items()
            if bytes(value) not in (b"null", b'"edge"' if name == "type" else b"null")
        ]
        hint = debezium(found) or (f"has {named(names)}{to_map(names, kind)}" if names else "")
        # Columns that became the event's fields need no other names.
        if columns := self._columns():
            hint = f"has {named(columns)}"
        of_set = (
            _number(found.get("edge_set"), self._sets.edge_names)
            if kind == "edge"
            else _number(found.get("node_set"), self._sets.node_names)
        )
        return self._join(str(bad), hint, kind, of_set)

    def _join(self, what: str, hint: str, kind: str, of_set: int) -> str:
        """Join error, hint and example. Equal texts are one object, because a record may need very
        many."""
        key = what, hint, kind, of_set
        if key not in self._texts:
            # Start again instead of tracking the use of each text.
            if len(self._texts) >= MAX_KEPT:
                self._texts.clear()
            article = "an" if kind == "edge" else "a"
            text = f"{what[:120]}{'; ' if hint else ''}{hint}"
            example = f". As {article} {kind} should be: {self._example(kind, of_set)}"
            self._texts[key] = text[: MAX_TEXT - len(example)] + example
        return self._texts[key]

    def _example(self, kind: str, of_set: int) -> str:
        """An example of an event of a type and a set, with the stream's widths and unit of time."""
        sets = self._sets
        # With several sets an event names its set, and keys need no prefix.
        plain = len(sets.node_names) > 1
        user, item = ('"8"', '"3"') if plain else ('"user:8"', '"item:3"')
        names = sets.edge_names if kind == "edge" else sets.node_names
        named_set = f'"{kind}_set": "{names[of_set]}", ' if len(names) > 1 else ""
        if kind == "edge":
            features = _features(sets.of_edges[of_set])
            return f'{{{named_set}"src": {user}, "dst": {item}, "time": {self._time}{features}}}'
        named_set = named_set.replace(f"{kind}_set", "node_set")
        if kind == "node":
            features = _features(sets.of_nodes[of_set])
            return f'{{"type": "node", {named_set}"id": {user}{features}}}'
        if kind == "label":
            target = _numbers("target", sets.schema.label_dim)
            head = f'"type": "label", {named_set}"node": {user}'
            return f'{{{head}, "time": {self._time}{target}}}'
        return f'{{"type": "delete", {named_set}"node": {user}}}'


def _number(sent: msgspec.Raw | None, names: Sequence[str]) -> int:
    """The number of the set that an event names; 0 if it names none."""
    return next((i for i, n in enumerate(names) if bytes(sent or b"") == f'"{n}"'.encode()), 0)


def _features(of_set: SetFeatures) -> str:
    """The features of a set as the last field of an example; "" if it has none."""
    if not of_set.names:
        return _numbers("features", of_set.width)
    shown = [f"{msgspec.json.encode(n).decode()}: {v}" for n, v in of_set.examples(MAX_SHOWN)]
    more = f", ... {len(of_set.names)} features" if len(of_set.names) > MAX_SHOWN else ""
    return f', "features": {{{", ".join(shown)}{more}}}'


def to_map(names: Sequence[str], kind: str = "edge") -> str:
    """A hint on renaming fields that look like the missing ones of an edge; "" if there are
    none."""
    if kind != "edge":
        return ""
    plain = {n.lower().replace("_", "").replace("-", ""): n for n in names if n not in FIELDS}
    meant = {
        field: next(plain[other] for other in others if other in plain)
        for field, others in OTHER_NAMES.items()
        if field not in names and not plain.keys().isdisjoint(others)
    }
    if not meant:
        return ""
    which = "them" if list(meant.values()) == list(names) else named(list(meant.values()))
    return f": map {which} to {', '.join(meant)}"


def debezium(found: Mapping[str, msgspec.Raw]) -> str:
    """A hint for a Debezium change event, also inside `payload`; "" for any other value."""
    inside = fields(found["payload"]) if "payload" in found else {}
    if not (all(n in found for n in ENVELOPE) or all(n in inside for n in ENVELOPE)):
        return ""
    return (
        "looks like Debezium (before, after, op): give the topic an entry in sources, with "
        "envelope: debezium and its columns as src, dst, time"
    )


def foreign(start: bytes) -> str:
    """Guess the format of a value that is not JSON from its first bytes. Returns: a hint, "" if
    unknown."""
    if start.strip() in (b"{", b"[", b"[{"):
        return "JSON of several lines; write one object a line, as jq -c does"
    # Confluent's wire format: a zero byte and the schema's number in four bytes.
    if start[:1] == b"\0" and len(start) >= 5:
        number = int.from_bytes(start[1:5], "big")
        is_json = start[5:6] in (b"{", b"[")
        what, form = (
            ("JSON", "json-schema") if is_json else ("Avro or Protobuf", "avro or protobuf")
        )
        return (
            f"schema registry header, id {number}: {what} follows; give the topic an entry in "
            f"sources, with format: {form}"
        )
    # Magic bytes: Arrow stream and file, Avro file, gzip and zstd.
    if start[:4] in (b"\xff\xff\xff\xff", b"ARRO"):
        return "looks like Arrow: set the header content-type, and send the stream format"
    if start[:4] == b"Obj\x01":
        return "looks like an Avro file; send JSON"
    if start[:2] == b"\x1f\x8b" or start[:4] == b"\x28\xb5\x2f\xfd":
        return "looks compressed: let the producer's compression.type do that"
    return ""


def _numbers(field: str, dim: int) -> str:
    """A field of `dim` numbers as the last one of an example; "" for 0."""
    if not dim:
        return ""
    shown = ", ".join(["0.5"] * min(dim, MAX_SHOWN))
    return f', "{field}": [{shown}{f", ... {dim} numbers" if dim > MAX_SHOWN else ""}]'

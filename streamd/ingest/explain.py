"""Error texts of refused events, which tell the sender what was found and what is expected.

They hold names of the sender's fields, never values.
"""

from collections.abc import Mapping, Sequence

import msgspec

from streamd.errors import BadEvent
from streamd.events import MICROSECONDS, Schema
from streamd.ingest.notices import named
from streamd.ingest.wire import FIELDS, TYPES, fields

MAX_TEXT = 490
"""Most characters of a text; local dead letters keep 500."""
MAX_SHOWN = 4
"""Most numbers that an example shows; for more it says how many there must be."""
MAX_KEPT = 256
"""Texts that are remembered: senders repeat the same few mistakes."""
EXPLAINED = ("missing_field", "wrong_type", "unknown_type", "feature_width", "unsupported")
"""Reasons that the names of the fields and an example of a valid event explain."""
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
    """Writes the error texts of events under one schema. Owner: the decoder."""

    def __init__(self, schema: Schema, time_unit: str) -> None:
        # An example of each type, with the widths and the unit of time of this stream.
        time = 1_672_531_200_123_000 // MICROSECONDS[time_unit]
        edge = _numbers("features", schema.edge_feature_dim)
        node = _numbers("features", schema.node_feature_dim)
        self._example = {
            "edge": f'{{"src": "user:8", "dst": "item:3", "time": {time}{edge}}}',
            "node": f'{{"type": "node", "id": "user:8"{node}}}',
            "label": f'{{"type": "label", "node": "user:8", "time": {time}'
            f"{_numbers('target', schema.label_dim)}}}",
            "delete": '{"type": "delete", "node": "user:8"}',
        }
        self._texts: dict[tuple[str, ...], str] = {}

    def text(self, bad: BadEvent, raw: bytes | msgspec.Raw) -> str:
        """Explain what is wrong with an event or a whole value, in at most `MAX_TEXT` characters.

        raw: its bytes.
        """
        if bad.reason == "bad_json":
            return self._joined(str(bad), foreign(bytes(memoryview(raw)[:64])), "edge")
        if bad.reason not in EXPLAINED:
            return str(bad)[:MAX_TEXT]

        # Show the names of the fields that were sent, and how to map them.
        found = fields(raw)
        sent = bytes(found.get("type", b""))
        kind = next((t for t in TYPES if sent == f'"{t}"'.encode()), "edge")
        names = [name for name, value in found.items() if bytes(value) != b"null"]
        hint = debezium(found) or (f"has {named(names)}{to_map(names, kind)}" if names else "")
        return self._joined(str(bad), hint, kind)

    def _joined(self, what: str, hint: str, kind: str) -> str:
        """Join error, hint and example. Equal texts are one object: a record may need very many."""
        key = what, hint, kind
        if key not in self._texts:
            if len(self._texts) >= MAX_KEPT:
                self._texts.clear()
            article = "an" if kind == "edge" else "a"
            text = f"{what[:120]}{'; ' if hint else ''}{hint}"
            example = f". As {article} {kind} should be: {self._example[kind]}"
            self._texts[key] = text[: MAX_TEXT - len(example)] + example
        return self._texts[key]


def to_map(names: Sequence[str], kind: str = "edge") -> str:
    """Say how to rename fields that look like the missing ones of an edge; empty for none."""
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
    """Say what to do with a Debezium change event, also inside `payload`; empty for any other."""
    inside = fields(found["payload"]) if "payload" in found else {}
    if not (all(n in found for n in ENVELOPE) or all(n in inside for n in ENVELOPE)):
        return ""
    return (
        "looks like Debezium (before, after, op): give the topic an entry in sources, with "
        "envelope: debezium and its columns as src, dst, time"
    )


def foreign(start: bytes) -> str:
    """Guess the format of a value that is not JSON from its first bytes; empty where unknown."""
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
    """A field of `dim` numbers as the last one of an example; empty for 0."""
    if not dim:
        return ""
    shown = ", ".join(["0.5"] * min(dim, MAX_SHOWN))
    return f', "{field}": [{shown}{f", ... {dim} numbers" if dim > MAX_SHOWN else ""}]'

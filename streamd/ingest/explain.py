"""What is said of a refused event, so that its sender can mend it: what was found and expected.

No value of a sender's field is ever part of it, only names of fields.
"""

from collections.abc import Mapping, Sequence

import msgspec

from streamd.errors import BadEvent
from streamd.events import MICROSECONDS, Schema
from streamd.ingest.notices import named
from streamd.ingest.wire import FIELDS, TYPES, fields

MAX_TEXT = 490
"""Characters of a text: local dead letters keep 500."""
MAX_SHOWN = 4
"""Numbers that an example shows; of more it tells how many there must be."""
MAX_KEPT = 256
EXPLAINED = ("missing_field", "wrong_type", "unknown_type", "feature_width", "unsupported")
"""Reasons that the fields found, or the sight of a right event, explain."""
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
"""What others call the fields of an edge, in small letters, without `_` and `-`."""
ENVELOPE = ("before", "after", "op")


class Explainer:
    """Texts of refused events under one schema. Owner: the decoder."""

    def __init__(self, schema: Schema, time_unit: str) -> None:
        time = 1_672_531_200_123_000 // MICROSECONDS[time_unit]
        edge = _numbers("features", schema.edge_feature_dim)
        node = _numbers("features", schema.node_feature_dim)
        self._right = {
            "edge": f'{{"src": "user:8", "dst": "item:3", "time": {time}{edge}}}',
            "node": f'{{"type": "node", "id": "user:8"{node}}}',
            "label": f'{{"type": "label", "node": "user:8", "time": {time}'
            f"{_numbers('target', schema.label_dim)}}}",
            "delete": '{"type": "delete", "node": "user:8"}',
        }
        self._texts: dict[tuple[str, ...], str] = {}

    def text(self, bad: BadEvent, raw: bytes | msgspec.Raw) -> str:
        """What was wrong with an event (or a whole value), at most `MAX_TEXT` characters.

        raw: its bytes.
        """
        if bad.reason == "bad_json":
            return self._joined(str(bad), foreign(bytes(memoryview(raw)[:64])), "edge")
        if bad.reason not in EXPLAINED:
            return str(bad)[:MAX_TEXT]
        found = fields(raw)
        sent = bytes(found.get("type", b""))
        kind = next((t for t in TYPES if sent == f'"{t}"'.encode()), "edge")
        names = [name for name, value in found.items() if bytes(value) != b"null"]
        hint = debezium(found) or (f"has {named(names)}{to_map(names, kind)}" if names else "")
        return self._joined(str(bad), hint, kind)

    def _joined(self, what: str, hint: str, kind: str) -> str:
        """The text; the same one for all that is alike, of which a record may hold very many."""
        key = what, hint, kind
        if key not in self._texts:
            if len(self._texts) >= MAX_KEPT:
                self._texts.clear()
            article = "an" if kind == "edge" else "a"
            text = f"{what[:120]}{'; ' if hint else ''}{hint}"
            right = f". As {article} {kind} should be: {self._right[kind]}"
            self._texts[key] = text[: MAX_TEXT - len(right)] + right
        return self._texts[key]


def to_map(names: Sequence[str], kind: str = "edge") -> str:
    """What to call which of a sender's fields, where some look like the missing ones of an edge."""
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
    """What to do with a change event of Debezium, also inside `payload`; empty where it is none."""
    inside = fields(found["payload"]) if "payload" in found else {}
    if not (all(n in found for n in ENVELOPE) or all(n in inside for n in ENVELOPE)):
        return ""
    return (
        "looks like Debezium (before, after, op): let the connector unwrap it "
        "(ExtractNewRecordState, no schemas) and map its columns to src, dst, time"
    )


def foreign(start: bytes) -> str:
    """What a value that is not JSON looks like by its first bytes; empty where they say nothing."""
    if start[:1] == b"\0" and len(start) >= 5:
        number = int.from_bytes(start[1:5], "big")
        what = "JSON" if start[5:6] in (b"{", b"[") else "Avro or Protobuf"
        return (
            f"schema registry header, id {number}: {what} follows; send plain JSON, "
            "by a serializer without a registry"
        )
    if start[:4] in (b"\xff\xff\xff\xff", b"ARRO"):
        return "looks like Arrow: set the header content-type, and send the stream format"
    if start[:4] == b"Obj\x01":
        return "looks like an Avro file; send JSON"
    if start[:2] == b"\x1f\x8b" or start[:4] == b"\x28\xb5\x2f\xfd":
        return "looks compressed: let the producer's compression.type do that"
    return ""


def _numbers(field: str, dim: int) -> str:
    """A field of so many numbers as it follows others in an example; empty for none."""
    if not dim:
        return ""
    shown = ", ".join(["0.5"] * min(dim, MAX_SHOWN))
    return f', "{field}": [{shown}{f", ... {dim} numbers" if dim > MAX_SHOWN else ""}]'

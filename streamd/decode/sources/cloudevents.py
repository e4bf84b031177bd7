"""CloudEvents: locates an event's attributes, next to its data or in the record's headers.

Kafka Protocol Binding for CloudEvents, version 1.0.2: a structured event is one JSON object; in
binary mode the value is the data, and each attribute is a header.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import msgspec

from streamd.decode.headers import Header
from streamd.decode.sources.paths import parsed
from streamd.errors import BadEvent

STRUCTURED = ("application/cloudevents+json", "application/cloudevents-batch+json")
"""Content types of one event with its attributes next to its data, and of an array of such
events."""
ATTRIBUTE = "ce_"
"""Prefix of the headers with attributes."""


def mode_of(headers: Sequence[Header], content: str) -> str:
    """The mode of a record: `structured` or `binary`.

    content: its content type, "" if it has none.
    """
    if content in STRUCTURED:
        return "structured"
    return "binary" if any(name.startswith(ATTRIBUTE) for name, _ in headers) else "structured"


def as_structured(headers: Sequence[Header], value: bytes) -> bytes:
    """Convert a binary event to structured form, so that it can be stored without its headers."""
    event: dict[str, Any] = {
        name.removeprefix(ATTRIBUTE): (content or b"").decode(errors="replace")
        for name, content in headers
        if name.startswith(ATTRIBUTE)
    }
    try:
        event["data"] = parsed(value)
    except BadEvent:
        # Data that is not JSON stays exact as base64.
        event["data_base64"] = base64.b64encode(value).decode()
    return msgspec.json.encode(event)


def with_data(event: Any) -> Any:
    """Decode the data of a structured event that is JSON in base64.

    Raises: BadEvent if it is not.
    """
    try:
        data = base64.b64decode(event["data_base64"], validate=True)
    except (TypeError, KeyError, binascii.Error, ValueError):
        raise BadEvent("wrong_type", "data_base64 is not base64") from None
    return {**event, "data": parsed(data)}

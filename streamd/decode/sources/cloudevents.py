"""CloudEvents: where the attributes of an event are, beside its data or in the record's headers.

Kafka Protocol Binding for CloudEvents, version 1.0.2: a structured event is one JSON object, in
binary mode the value is the data and each attribute a header.
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
"""Content types of one event with its attributes beside its data, and of an array of such."""
ATTRIBUTE = "ce_"
"""Prefix of the headers that hold attributes."""


def mode_of(headers: Sequence[Header], content: str) -> str:
    """Whether a record is a `structured` or a `binary` event.

    content: its content type, empty where it has none.
    """
    if content in STRUCTURED:
        return "structured"
    return "binary" if any(name.startswith(ATTRIBUTE) for name, _ in headers) else "structured"


def as_structured(headers: Sequence[Header], value: bytes) -> bytes:
    """A binary event in structured form, so that it can be kept without its headers."""
    event: dict[str, Any] = {
        name.removeprefix(ATTRIBUTE): (content or b"").decode(errors="replace")
        for name, content in headers
        if name.startswith(ATTRIBUTE)
    }
    try:
        event["data"] = parsed(value)
    except BadEvent:
        event["data_base64"] = base64.b64encode(value).decode()
    return msgspec.json.encode(event)


def with_data(event: Any) -> Any:
    """A structured event whose data is JSON in base64, with that data as others have it.

    Raises: BadEvent where it is not.
    """
    try:
        data = base64.b64decode(event["data_base64"], validate=True)
    except (TypeError, KeyError, binascii.Error, ValueError):
        raise BadEvent("wrong_type", "data_base64 is not base64") from None
    return {**event, "data": parsed(data)}

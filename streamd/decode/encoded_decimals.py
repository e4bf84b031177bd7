"""Detects decimals that a connector wrote as bytes: text in base64, or an object with their
scale."""

import re
from collections.abc import Iterable
from typing import Any

PADDED = re.compile(r"(?:[A-Za-z0-9+/]{4}){0,8}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)")
"""Base64 with padding at its end, for the bytes of a decimal of at most some 60 digits."""
WAY_OUT = "set the connector's decimal.handling.mode to string"


def decimal_hint(value: Any) -> str:
    """The end of an error about a value that is such a decimal; "" for other values."""
    is_object = type(value) is dict and value.keys() == {"scale", "value"}
    is_text = type(value) is str and len(value) <= 64 and PADDED.fullmatch(value)
    return f"; {WAY_OUT}" if is_object or is_text else ""


def doubt_of_decimals(name: str, values: Iterable[Any]) -> str | None:
    """A sentence on values if at least a third are base64 with padding (of decimals two thirds
    are); None otherwise. name: of the field."""
    texts = {value for value in values if type(value) is str}
    padded = [text for text in texts if PADDED.fullmatch(text)]
    if not padded or 3 * len(padded) < len(texts):
        return None
    return f"{name} looks like a decimal as base64, such as {min(padded)}: {WAY_OUT}"

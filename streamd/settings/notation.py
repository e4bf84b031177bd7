"""Values of settings as text, in the notation of a settings file."""

import ast
import json
from typing import Any


def as_written(value: Any) -> str:
    """Write a setting's value as in a settings file."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str, ensure_ascii=False)


def read_written(text: str) -> Any:
    """Read the value of a text by `as_written`, or of Python's notation, which reports of earlier
    releases have. Returns: text that is neither as it is."""
    # Text without quotes is neither JSON nor Python.
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text

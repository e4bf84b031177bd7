"""Debezium's placeholder for a value that the database did not send with a change.

A large column that an update does not change is not in the log of Postgres or Oracle. Debezium then
writes a word, the connector's `unavailable.value.placeholder`, in the form of the column's type.
"""

import base64
import hashlib
import uuid
from collections.abc import Sequence
from typing import Any

HEX = "hex:"
"""Prefix of a word that is written as hexadecimal bytes, as in the connector's settings."""


class UnsentValue:
    """Recognizes the placeholder in all forms in which Debezium writes its word.

    Raises: ValueError for a word that begins with `HEX` and is not hexadecimal.
    """

    def __init__(self, word: str) -> None:
        data = bytes.fromhex(word.removeprefix(HEX)) if word.startswith(HEX) else word.encode()
        text = data.decode(errors="replace")
        # Bytes are base64 or hex, by `binary.handling.mode`; a UUID is derived from the word.
        of_uuid = hashlib.md5(data, usedforsecurity=False).digest()
        self._values = frozenset(
            (
                data,
                text,
                data.hex(),
                base64.b64encode(data).decode(),
                base64.urlsafe_b64encode(data).decode(),
                str(uuid.UUID(bytes=of_uuid, version=3)),
                f'{{"{text}":"{text}"}}',
            )
        )
        self._numbers = list(data)

    def is_one(self, value: Any) -> bool:
        """Whether a value is the placeholder, also as a list of one, or as the numbers of its
        bytes."""
        if type(value) is list:
            if value == self._numbers:
                return True
            return len(value) == 1 and type(value[0]) in (str, bytes) and value[0] in self._values
        return type(value) in (str, bytes) and value in self._values

    def without(self, column: Sequence[Any]) -> Sequence[Any]:
        """Replace each placeholder in a column by None."""
        try:
            if self._values.isdisjoint(column):
                return column
        except TypeError:
            # Lists and objects have no hash.
            if not any(map(self.is_one, column)):
                return column
        return [None if self.is_one(value) else value for value in column]

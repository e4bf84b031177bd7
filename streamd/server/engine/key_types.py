"""The types of the log's keys: the text "5" and the integer 5 are different nodes."""

import asyncio
from collections.abc import Container, Iterable, Sequence

from streamd.events import Key, split_key
from streamd.server.engine.set_names import PlainKey, in_set

SLICE_KEYS = 20_000
"""Keys that are read before other requests get a turn: about 2 ms."""


class KeyTypes:
    """Records whether the keys of each node set are texts, integers or both. Owner: the server's
    state."""

    def __init__(self) -> None:
        self._keys: Sequence[Key | None] = ()
        self._num_seen = 0
        self._found: set[tuple[int, type]] = set()

    async def of(self, keys: Sequence[Key | None], node_sets: set[int]) -> set[type]:
        """The types of the keys of some node sets: `str`, `int` or both; empty without keys.

        keys: of all nodes, by id, None for a deleted node. Each call reads the keys that are new
        since the last one.
        """
        if keys is not self._keys:
            self._keys, self._num_seen, self._found = keys, 0, set()
        end = len(keys)
        while self._num_seen < end:
            part = keys[self._num_seen : self._num_seen + SLICE_KEYS]
            self._num_seen += len(part)
            self._found |= {_type_of(key) for key in part if key is not None}
            # Between two slices, this thread answers requests and appends keys.
            await asyncio.sleep(0)
        return {kind for number, kind in self._found if number in node_sets}


def hint_of(ids: Container[Key], requested: Iterable[Key]) -> str:
    """A hint that a key may have the wrong type: it is unknown, and the same key of the other type
    is known. Empty if all keys are known, or none has such a counterpart.

    ids: keys of all nodes. requested: keys of a request.
    """
    for key in requested:
        number, own = split_key(key)
        # No hint for a known key, nor for a key that is unknown in both types.
        other = _same_text_of_other_type(own)
        if other is None or key in ids or in_set(number, other) not in ids:
            continue
        if isinstance(own, str):
            return (
                f'The text "{own}" is no node, but the integer {own} is. Send integer keys without '
                "quotation marks (in a path with integer=true, on /v2 as INT64)."
            )
        return (
            f'The integer {own} is no node, but the text "{own}" is. Send text keys in quotation '
            "marks (in a path without integer=true, on /v2 as BYTES)."
        )
    return ""


def _type_of(key: Key) -> tuple[int, type]:
    number, own = split_key(key)
    return number, type(own)


def _same_text_of_other_type(key: PlainKey) -> PlainKey | None:
    """The key of the other type with the same characters; None for text that is no integer."""
    if isinstance(key, int):
        return str(key)
    digits = key.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
        return None
    number = int(key)
    return number if str(number) == key else None

"""Numbers for the keys seen lately: one look-up checks a key, and the rest works on integers."""

import re
from collections.abc import Sequence

import numpy as np

from streamd.errors import BadEvent
from streamd.events import Int64, Key, SetKey

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
INT64_MAX = 2**63 - 1
"""Largest absolute value of an integer key."""
MAX_KEYS = 1_000_000
"""Keys in the table, about 200 MB; beyond that those that no waiting event needs are forgotten."""


class KeyTable:
    """Valid keys and a number for each, which is not a node id. Owner: the poll thread.

    `shrink` forgets keys that are not in use; numbers given out before are void then.
    """

    def __init__(self, max_key_bytes: int) -> None:
        self._max_bytes = max_key_bytes
        self._number: dict[Key, int] = {}
        self.keys: list[Key] = []
        self._limit = MAX_KEYS
        self.epoch = 0
        """Changes when numbers given out before become void."""

    def numbers(self, keys: Sequence[Key]) -> Int64 | None:
        """Numbers of keys, int64[n]; None where one of them is not valid."""
        # The usual case in one pass: all keys are known.
        get = self._number.get
        try:
            return np.fromiter(map(get, keys), np.int64, len(keys))
        except TypeError:
            pass

        # Number the new ones.
        try:
            for key in keys:
                if key not in self._number:
                    self.number(key, "key")
        except BadEvent:
            return None
        return np.fromiter(map(get, keys), np.int64, len(keys))

    def number(self, key: Key | None, name: str) -> int:
        """The number of one key. name: of its field.

        Raises: BadEvent where it is missing, empty, too long or otherwise not valid.
        """
        known = self._number.get(key) if key is not None else None
        if known is not None:
            return known
        if key is None:
            raise BadEvent("missing_field", f"{name} is missing")

        # Check a new key, once.
        plain = key.key if isinstance(key, SetKey) else key
        if isinstance(plain, str):
            if not plain or CONTROL.search(plain):
                raise BadEvent("bad_key", f"{name} is empty or holds a control character")
            try:
                size = len(plain.encode())
            except UnicodeEncodeError:
                raise BadEvent("bad_key", f"{name} is not valid unicode") from None
            if size > self._max_bytes:
                raise BadEvent("bad_key", f"{name} has {size} bytes, at most {self._max_bytes}")
        elif not -INT64_MAX <= plain <= INT64_MAX:
            raise BadEvent("bad_key", f"{name} does not fit int64")

        # Give it the next number.
        number = self._number[key] = len(self.keys)
        self.keys.append(key)
        return number

    @property
    def is_full(self) -> bool:
        """Whether `shrink` is due."""
        return len(self.keys) > self._limit

    def shrink(self, used: Int64) -> Int64:
        """Forget all keys but those in use.

        Args: used: their numbers, ascending.
        Returns: their new numbers.
        """
        self.keys = [self.keys[number] for number in used.tolist()]
        self._number = {key: number for number, key in enumerate(self.keys)}
        self._limit = max(MAX_KEYS, 2 * len(self.keys))
        self.epoch += 1
        return np.arange(len(used))

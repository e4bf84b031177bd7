"""Numbers for recent keys: one look-up checks a key, and the decoder then works with integers."""

import re
from collections.abc import Sequence

import numpy as np

from streamd.decode.plain_values import as_id
from streamd.errors import BadEvent
from streamd.events import Int64, Key, SetKey, split_key

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
INT64_MAX = 2**63 - 1
"""Maximum absolute value of an integer key."""
MAX_KEYS = 1_000_000
"""Keys in the table, about 200 MB; above it, keys that no waiting event uses are removed."""


class KeyTable:
    """Valid keys of all node sets, each with a number, which is not a node id. Owner: the poll
    thread.

    `shrink` removes keys that are not in use; numbers from before are then void.
    """

    def __init__(self, max_key_bytes: int) -> None:
        self._max_bytes = max_key_bytes
        self._numbers: dict[int, dict[str | int, int]] = {0: {}}
        self.keys: list[Key] = []
        self._limit = MAX_KEYS
        self.epoch = 0
        """Increases when `shrink` makes earlier numbers void."""

    def numbers(self, keys: Sequence[str | int], node_set: int = 0) -> Int64 | None:
        """Look up or add keys of a node set, int64[n]; None if a key is not valid."""
        # The usual case in one pass: all keys are known.
        known = self._numbers.setdefault(node_set, {})
        get = known.get
        try:
            return np.fromiter(map(get, keys), np.int64, len(keys))
        except TypeError:
            pass

        # Add the new keys.
        try:
            for key in keys:
                if key not in known:
                    self.number(key, "key", node_set)
        except BadEvent:
            return None
        return np.fromiter(map(get, keys), np.int64, len(keys))

    def number(self, key: str | int | float | None, name: str, node_set: int = 0) -> int:
        """Look up or add one key of a node set; it may be a whole float. name: of its field.

        Raises: BadEvent if the key is missing, empty, too long or otherwise not valid.
        """
        if key is None:
            raise BadEvent("missing_field", f"{name} is missing")
        if isinstance(key, float):
            key = as_id(key)
            if isinstance(key, float):
                raise BadEvent("wrong_type", f"{name}: expected int or str, got float")
        of_set = self._numbers.setdefault(node_set, {})
        known = of_set.get(key)
        if known is not None:
            return known

        # Check a new key, once.
        if isinstance(key, str):
            if not key or CONTROL.search(key):
                raise BadEvent("bad_key", f"{name} is empty or holds a control character")
            try:
                size = len(key.encode())
            except UnicodeEncodeError:
                raise BadEvent("bad_key", f"{name} is not valid unicode") from None
            if size > self._max_bytes:
                raise BadEvent(
                    "bad_key",
                    f"{name} has {size} bytes, ingest.max_key_bytes is {self._max_bytes}",
                )
        elif not -INT64_MAX <= key <= INT64_MAX:
            raise BadEvent("bad_key", f"{name} does not fit int64")

        # Give it the next number.
        number = of_set[key] = len(self.keys)
        self.keys.append(SetKey(node_set, key) if node_set else key)
        return number

    def find(self, key: str | int) -> list[int]:
        """The numbers of a key in all node sets that contain it."""
        return [of_set[key] for of_set in self._numbers.values() if key in of_set]

    @property
    def is_full(self) -> bool:
        """Whether `shrink` should be called."""
        return len(self.keys) > self._limit

    def shrink(self, used: Int64) -> Int64:
        """Remove all keys except those in use.

        Args: used: their numbers, ascending, int64[n].
        Returns: their new numbers, int64[n].
        """
        self.keys = [self.keys[number] for number in used.tolist()]
        self._numbers = {0: {}}
        for number, key in enumerate(self.keys):
            node_set, plain = split_key(key)
            self._numbers.setdefault(node_set, {})[plain] = number
        # With a fixed limit, a table of keys in use would shrink at every poll.
        self._limit = max(MAX_KEYS, 2 * len(self.keys))
        self.epoch += 1
        return np.arange(len(used))

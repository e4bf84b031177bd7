"""The search of dead letters for the keys of deleted nodes."""

import base64
import json
import re
from collections.abc import Collection, Iterable

import msgspec

from streamd.events import Key, split_key

INTEGER = re.compile(r"-?[0-9]{1,19}")
"""Text behind a prefix that may have been an integer."""


class SoughtKeys:
    """The keys that letters are searched for. Owner: the purge.

    Looking into a letter takes the same time for many keys as for few: parts of it are looked up
    among the keys, and never the keys one after the other in the letter.
    """

    def __init__(self, prefixes: Collection[str] = (), keys: Iterable[Key] = ()) -> None:
        """prefixes: those that mappings put before keys, which are not in the records."""
        self._prefixes = prefixes
        self._keys: set[Key] = set()
        self._texts: set[str] = set()
        self._lengths: set[int] = set()
        """Of the texts: as many parts of a text are looked up at each of its places."""
        for key in keys:
            self.add(key)

    def add(self, key: Key) -> None:
        """Seek a key, and what records may hold in its place where a mapping makes a key of it."""
        # What was sent holds a key as it is within its node set.
        plain = split_key(key)[1]
        self._seek(plain)
        if not isinstance(plain, str):
            return
        for prefix in self._prefixes:
            if plain.startswith(prefix):
                rest = plain.removeprefix(prefix)
                self._seek(rest)
                # Text of digits and the integer make the same key behind a prefix.
                if INTEGER.fullmatch(rest):
                    self._seek(int(rest))

    def _seek(self, key: Key) -> None:
        text = str(key)
        self._keys.add(key)
        self._texts.add(text)
        self._lengths.add(len(text))

    def are_in(self, line: bytes) -> bool:
        """Whether a stored letter has one of the keys among its strings and integers, or may have
        it.

        A letter that was cut or cannot be parsed may have it. The record's key counts where a
        node's key is any part of it.
        """
        # Parse the value, and search the record's key as text.
        try:
            letter = msgspec.json.decode(line)
            value = base64.b64decode(letter["value_base64"])
            record_key = base64.b64decode(letter.get("key_base64", ""))
            num_key_bytes = letter.get("num_key_bytes", 0)
            if letter["num_bytes"] != len(value) or num_key_bytes != len(record_key):
                return True  # `error` names nothing that is not in the value
            if self._is_part_of(record_key.decode()):
                return True
            if b"data_base64" in value:
                return True  # data of a CloudEvent that is not searched
            if b"\\" in record_key:
                return True  # JSON may spell a key with escapes
            parts = [
                json.loads(part, object_pairs_hook=list)
                for part in value.splitlines()
                if part.strip()
            ]
        except (ValueError, RecursionError, KeyError, TypeError):
            return True

        # Search all values of all objects, which were parsed as lists of pairs to keep duplicates.
        unseen = parts
        while unseen:
            part = unseen.pop()
            if isinstance(part, list | tuple):
                unseen.extend(part)
            elif part in self._keys:
                return True
        return False

    def _is_part_of(self, text: str) -> bool:
        """Whether a key is any part of a text."""
        return any(
            text[at : at + length] in self._texts
            for length in self._lengths
            for at in range(len(text) - length + 1)
        )

"""Search for the keys of deleted nodes in dead letters."""

import base64
import json
import re
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from streamd.events import Key, split_key

INTEGER = re.compile(r"-?[0-9]{1,19}")
"""Text after a prefix that may have been an integer."""


class SoughtKeys:
    """The keys to search for in letters. Owner: the purge.

    keys: with their types. texts: as text.
    The time to search a letter does not depend on the number of keys: its parts are looked up in
    the set of keys.
    """

    def __init__(self, prefixes: Collection[str] = (), keys: Iterable[Key] = ()) -> None:
        """prefixes: those that mappings add to keys; records do not have them."""
        self._prefixes = prefixes
        self.keys: set[Key] = set()
        self.texts: set[str] = set()
        self._lengths: set[int] = set()
        """Distinct lengths of the texts: a search looks up one substring per length and start."""
        for key in keys:
            self.add(key)

    def add(self, key: Key) -> None:
        """Add a key, and the values in records from which a mapping makes this key."""
        # Records hold a key without its node set.
        plain = split_key(key)[1]
        self._seek(plain)
        if not isinstance(plain, str):
            return
        for prefix in self._prefixes:
            if plain.startswith(prefix):
                rest = plain.removeprefix(prefix)
                self._seek(rest)
                # After a prefix, digits as text and the integer make the same key.
                if INTEGER.fullmatch(rest):
                    self._seek(int(rest))

    def _seek(self, key: Key) -> None:
        text = str(key)
        self.keys.add(key)
        self.texts.add(text)
        self._lengths.add(len(text))

    def are_in(self, line: bytes) -> bool:
        """Whether a stored letter has, or may have, one of the keys among its strings and integers.

        A letter that was cut or cannot be parsed may have one. In the record's key, any
        substring counts.
        """
        # Parse the value, and search the record's key as text.
        try:
            letter = msgspec.json.decode(line)
            value = base64.b64decode(letter["value_base64"])
            record_key = base64.b64decode(letter.get("key_base64", ""))
            num_key_bytes = letter.get("num_key_bytes", 0)
            if letter["num_bytes"] != len(value) or num_key_bytes != len(record_key):
                return True  # it was cut; `error` only quotes the value
            if self._is_part_of(record_key.decode()):
                return True
            if b"data_base64" in value:
                return True  # encoded data of a CloudEvent is not searched
            if b"\\" in record_key:
                return True  # JSON may escape characters of a key
            parts = [
                json.loads(part, object_pairs_hook=list)
                for part in value.splitlines()
                if part.strip()
            ]
        except (ValueError, RecursionError, KeyError, TypeError):
            return True

        # Search all values; objects were parsed as lists of pairs, to keep duplicate names.
        unseen = parts
        while unseen:
            part = unseen.pop()
            if isinstance(part, list | tuple):
                unseen.extend(part)
            elif part in self.keys:
                return True
        return False

    def _is_part_of(self, text: str) -> bool:
        """Whether a key is a substring of a text."""
        return any(
            text[at : at + length] in self.texts
            for length in self._lengths
            for at in range(len(text) - length + 1)
        )


class LetterProof:
    """Finds keys that stored letters contain for certain; `SoughtKeys` also counts letters that may
    contain one. Owner: a search for erased keys."""

    def __init__(self, keys: Iterable[Key], prefixes: Collection[str] = ()) -> None:
        """prefixes: those that mappings add to keys; records do not have them."""
        # Longer words first: a pattern takes the first alternative that matches.
        sought = SoughtKeys(prefixes, keys)
        self._keys = sought.keys
        words = sorted(map(re.escape, sought.texts), key=len, reverse=True)
        self._words = re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)")

    def is_in(self, line: bytes) -> bool:
        """Whether a stored letter has a key: as a value of its JSON, or as a whole word of the
        record's key and of a value that is not JSON."""
        try:
            letter = msgspec.json.decode(line)
            value = base64.b64decode(letter["value_base64"])
            record_key = base64.b64decode(letter.get("key_base64") or "")
        except (ValueError, KeyError, TypeError):
            return False
        # A record's key is text, of any form.
        if self._words.search(record_key.decode(errors="replace")):
            return True
        # JSON values have types; any other value is searched as text.
        try:
            parts = parse_json(value)
        except (ValueError, RecursionError):
            return self._words.search(value.decode(errors="replace")) is not None
        return holds_value(parts, self._keys)


def parse_json(value: bytes) -> list[Any]:
    """The JSON values in a letter, one a line, objects as lists of pairs, which keep duplicate
    names. Raises: ValueError, RecursionError."""
    try:
        return [json.loads(value, object_pairs_hook=list)]
    except ValueError:
        lines = (line for line in value.splitlines() if line.strip())
        return [json.loads(line, object_pairs_hook=list) for line in lines]


def holds_value(parts: list[Any], keys: Collection[Key]) -> bool:
    """Whether one of the values at any depth is a key, of its type."""
    unseen = list(parts)
    while unseen:
        part = unseen.pop()
        if isinstance(part, list | tuple):
            unseen.extend(part)
        elif isinstance(part, str | int) and not isinstance(part, bool) and part in keys:
            return True
    return False

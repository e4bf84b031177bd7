"""The nearest known name of an unknown one."""

import difflib
import re
from collections.abc import Collection

CLIENT = "kafka.client"
CLIENT_OPTIONS = (
    "security_protocol",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "ssl_cafile",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_check_hostname",
)
"""Options of `kafka.client` that a file is likely to have in another section."""


def nearest(name: str, known: Collection[str], least: float = 0.5) -> str | None:
    """Find the known name that an unknown one may be meant as; None if none is near.

    A longer name of the same words is nearer than one that differs in letters: `max_age` is
    `max_age_seconds` rather than `max_bytes`. least: likeness of letters, from 0 to 1.
    """
    longer = [one for one in known if one.startswith(f"{name}_")]
    words = _words(name)
    if not longer and len(words) > 1:
        longer = [one for one in known if words < _words(one)]
    found = difflib.get_close_matches(name, sorted(longer or known), 1, 0.0 if longer else least)
    return found[0] if found else None


def nearest_key(name: str, known: Collection[str], separator: str) -> str | None:
    """Find the known setting that an unknown one may be meant as: one of the same section, of the
    same last part in another section, or with all words of the last part.

    name, known: with sections before the last part. separator: of the parts.
    """
    last = name.rsplit(separator, 1)[-1]
    by_last: dict[str, list[str]] = {}
    for one in known:
        by_last.setdefault(one.rsplit(separator, 1)[-1], []).append(one)
    if last in by_last:
        # The section may be misspelled, or another one.
        sections = [one[: -len(last)] for one in by_last[last]]
        close = difflib.get_close_matches(name[: -len(last)], sections, 1, 0.8)
        return f"{close[0]}{last}" if close else by_last[last][0]

    # A longer name: in the same section, otherwise the only one in any.
    section = name[: len(name) - len(last)]
    words = _words(last)
    begins = [one for end in by_last if end.startswith(f"{last}_") for one in by_last[end]]
    has_all = [one for end in by_last if words < _words(end) for one in by_last[end]]
    for longer in (begins, has_all if len(words) > 1 else []):
        here = [one for one in longer if section and one.startswith(section)]
        if here or len(longer) == 1:
            return nearest(name, here or longer, 0.0)
    return next(iter(difflib.get_close_matches(name, sorted(known), 1, 0.5)), None)


def _words(name: str) -> set[str]:
    return set(re.split(r"[._-]+", name.lower()))

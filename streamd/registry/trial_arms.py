"""The versions that answer in arms of a trial: they are kept while it runs."""

from collections.abc import Iterable, Mapping, Sequence

from streamd.registry.manifest import Manifest
from streamd.settings.trials import CHAMPION, LAST_MIDNIGHT, RULES

DAY_US = 86_400_000_000
"""A day in microseconds."""


def arms_with_versions(arms: Iterable[str]) -> tuple[str, ...]:
    """The arms that have a version other than the champion."""
    return tuple(sorted(set(arms) - {CHAMPION, *RULES}))


def find_arm_versions(
    arms: Iterable[str], made: Sequence[Manifest], champion: str
) -> Mapping[str, str]:
    """Find the version of each arm, by name; an arm without one is missing.

    arms: with versions. made: all versions, oldest first. `last_midnight` is the newest version
    with a window that ended at the midnight (UTC) before the end of the champion's window, or on
    the day before it.
    """
    by_name = {m.name: m for m in made}
    found = {arm: arm for arm in arms if arm in by_name}
    if LAST_MIDNIGHT in arms and champion in by_name:
        midnight_us = by_name[champion].window_end_us // DAY_US * DAY_US
        before = [m.name for m in made if 0 <= midnight_us - m.window_end_us < DAY_US]
        found |= {LAST_MIDNIGHT: before[-1]} if before else {}
    return found

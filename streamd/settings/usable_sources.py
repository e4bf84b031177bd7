"""Finds the sources that can be checked for further errors if some have wrong or missing values."""

from collections import defaultdict
from copy import deepcopy
from typing import Any, NamedTuple

from pydantic import ValidationError

from streamd.settings.sets import Contradiction

NODE_KEYS = ("src", "dst", "node", "id")
"""Fields that are the key of a node."""
UNKNOWN = "unknown"
"""A path for a key without one."""


class UsableSources(NamedTuple):
    """Sources without an error, or that lack only keys of nodes, which have a path here.

    numbers: of each source in the settings.
    """

    sources: list[Any]
    numbers: list[int]

    def renumber(self, one: Contradiction) -> Contradiction:
        """A contradiction of these sources with the number of the source in the settings."""
        if one.steps[0] != "sources" or len(one.steps) == 1:
            return one
        number = self.numbers[int(one.steps[1])]
        return one._replace(steps=("sources", number, *one.steps[2:]))


def usable_sources(sources: Any, error: ValidationError) -> UsableSources | None:
    """Find the usable sources; None if there is none.

    sources: as read. error: of all settings.
    """
    if not isinstance(sources, list | tuple):
        return None
    missing: dict[int, list[Any]] = defaultdict(list)
    unusable = set()
    for e in error.errors():
        if e["loc"][0] != "sources":
            continue
        _, number, *steps = e["loc"]
        if e["type"] == "missing" and steps[-1] in NODE_KEYS:
            missing[int(number)].append(steps)
        else:
            unusable.add(int(number))
    numbers = [number for number in range(len(sources)) if number not in unusable]
    usable = [_fill(sources[number], missing[number]) for number in numbers]
    return UsableSources(usable, numbers) if numbers else None


def _fill(source: Any, missing: list[Any]) -> Any:
    """Copy a source, with a path for each missing key. missing: the steps of each."""
    filled = deepcopy(source)
    for *above, name in missing:
        fields = filled
        for step in above:
            fields = fields[step]
        # A path that contradicts nothing else: some path must lead into the list `each`.
        each = filled.get("each")
        fields[name] = UNKNOWN if each is None else f"{each}.{UNKNOWN}"
    return filled

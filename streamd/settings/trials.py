"""The settings of a trial: its arms, and the topic of its impressions."""

import re

from pydantic import Field

from streamd.settings.branch import Branch

CHAMPION = "champion"
RULES = ("rule", "popularity")
LAST_MIDNIGHT = "last_midnight"
"""The arm of the version that was trained up to the last midnight (UTC) of event time."""
ARMS = (CHAMPION, LAST_MIDNIGHT, *RULES)
"""The names that an arm may have, or that of a version: it answers the arm's requests."""
MAX_VERSIONS = 3
"""Maximum number of arms with a version of their own: each needs as much memory as the champion."""
VERSION_NAME = re.compile(r"\d+-\d+(-\d+)?", re.ASCII)
"""<window end in microseconds>-<event id>, and a number if another version has that name."""


class TrialSettings(Branch):
    """The trial that runs, if its name is set."""

    # Its name is part of each unit's hash.
    name: str = Field(
        "",
        pattern=r"^([a-z0-9][a-z0-9-]{0,62})?$",
        description="name of the trial that runs; another name assigns all units again; empty: "
        "none",
    )
    # Mappings of YAML, or JSON in a variable.
    arms: dict[str, float] = Field(
        {},
        description="arm -> share of the units: champion, and other arms out of last_midnight, "
        "rule, popularity and names of versions; the shares add up to 1",
    )
    # Nothing else may use it.
    topic: str = Field(
        "",
        pattern=r"^([a-zA-Z0-9._-]{1,249})?$",
        description="topic for the trial's impressions, and for outcomes that a program sends",
    )
    # Both are part of the figures' meaning, so they cannot change while the trial runs.
    horizon_seconds: int = Field(
        86_400,
        ge=1,
        le=31_536_000,
        description="event time after an answer in which an outcome counts",
    )
    edge_set: str | None = Field(
        None,
        description="edge set with edges that are outcomes; if not set, only records in the topic "
        "are",
    )

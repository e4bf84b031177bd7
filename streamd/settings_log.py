"""The settings of a log that several machines hold."""

from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field

from streamd.settings_branch import Branch, Seconds


def without_secrets(url: str) -> str:
    """A URL as it may be shown: without user, password and query, which may be credentials."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


class LogSettings(Branch):
    """Whether other machines hold the log too, and what this one is to them."""

    name: str = Field(
        "",
        pattern=r"^([a-zA-Z0-9._-]{1,200})?$",
        description="names the topics NAME.changelog and NAME.models, by which other machines "
        "follow; empty: one machine holds the log",
    )
    store: str = Field(
        "",
        description="URL of the store of sealed segments, versions and checkpoints, as "
        "s3://bucket/folder; needed with log.name",
    )
    member: Literal["leader", "replica"] = Field(
        "leader",
        description="leader: ingest and trainer run here; replica: a follower writes the log here",
    )
    manifest_seconds: Seconds = Field(
        600, description="the leader writes a manifest to the store at least so often"
    )

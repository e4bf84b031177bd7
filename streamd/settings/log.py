"""The settings of a log that is replicated to several machines, of leases on it, and of SQL."""

from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field

from streamd.settings.branch import Branch, Positive, Seconds


def without_secrets(url: str) -> str:
    """A URL without user, password and query, which may be credentials: safe to print."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


class LogSettings(Branch):
    """Replication of the log to other machines, and the role of this one in it."""

    name: str = Field(
        "",
        pattern=r"^([a-zA-Z0-9._-]{1,200})?$",
        description="prefix of the topics NAME.changelog and NAME.models, through which other "
        "machines follow; empty: a single machine has the log",
    )
    store: str = Field(
        "",
        description="URL of the object store for sealed segments, versions and checkpoints, "
        "such as s3://bucket/folder; a standby needs it, and without it replicas get no model "
        "versions",
    )
    member: Literal["leader", "replica", "standby"] = Field(
        "leader",
        description="leader: ingest and trainer run here; replica: a follower writes the log "
        "here; standby: a follower that becomes the leader when there is no "
        "leader, or on request",
    )
    manifest_seconds: Seconds = Field(
        600, description="longest time between two manifests that the leader writes to the store"
    )

    @property
    def follows(self) -> bool:
        """Whether this machine is a follower, always or at times: records from other machines may
        then be newer than its own."""
        return bool(self.name) and self.member != "leader"


class LeaderSettings(Branch):
    """Failover: when a standby becomes the leader."""

    timeout_seconds: float = Field(
        10,
        ge=2,
        le=600,
        description="time without a heartbeat of a leader, while the brokers answer, after "
        "which a standby becomes the leader",
    )

    @property
    def heartbeat_seconds(self) -> float:
        """Interval of the heartbeats of a leader without commits: a third of the timeout, so that
        one of them may be late, and at most one second."""
        return min(1.0, self.timeout_seconds / 3)


class SqlSettings(Branch):
    """Bounds of `streamd sql`, which reads the log."""

    # DuckDB alone would take 80 % of the machine's memory, which roles need.
    max_memory_bytes: Positive = Field(
        1 << 30, description="memory of a query of `streamd sql` above which it fails"
    )


class HoldSettings(Branch):
    """The lease of a stopped server on the segments that its restart reads."""

    lease_seconds: float = Field(
        86_400,
        ge=60,
        description="time without a run after which a server no longer keeps segments from "
        "retention and compaction",
    )

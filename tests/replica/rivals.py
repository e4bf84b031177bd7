"""Members of one log that all may lead, over a changelog in memory."""

import math

from streamd import storage
from streamd.eventlog.recovery import published_seq
from streamd.eventlog.writer import LogWriter
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.leader import lead
from tests.eventlog import test_crash as life
from tests.replica.directories import difference

__all__ = ["all_agree", "commit", "difference", "drain", "leader"]


def leader(path, topic, disk=storage.DISK, heartbeat_seconds=math.inf, **values):
    """The log's writer after a claim; it sends no heartbeat unless told to."""
    publisher = lead(path, topic.producer(), topic.reader(), disk, member=path.name, heartbeat_seconds=heartbeat_seconds, **values)
    return LogWriter(path, life.SCHEMA, life.SEGMENT_EDGES, disk, publisher)


def drain(path, topic):
    """Follow to the changelog's end. Returns: number of records that were heard."""
    reader = topic.reader()
    follower = Follower(path, reader)
    heard = 0
    try:
        while reader.position < topic.end:
            heard += follower.step(0)
    finally:
        follower.close()
    return heard


def commit(log, number):
    """Commit some rows, as one of many that are all different."""
    log.commit(life.commit_number(number), life.Progress("c", {"t": "id"}, {"t": {0: life.Position(log.seq + 1)}}), 10**4 + log.seq)


def all_agree(tmp_path, topic, seq):
    """The follower goes on twice, as one that is started again; then each leader starts and is one."""
    for _ in range(2):
        drain(tmp_path / "f", topic)
    for name in "ab":
        leader(tmp_path / name, topic).close()
    drain(tmp_path / "f", topic)
    assert published_seq(tmp_path / "f") == seq
    assert difference(tmp_path / "a", tmp_path / "f") == difference(tmp_path / "b", tmp_path / "f") == ""

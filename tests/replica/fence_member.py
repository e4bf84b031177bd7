"""A member of a log as a process of its own, on a real changelog: it does what it is told on its standard input, a JSON object a line,
and answers each by another. It stops itself (SIGSTOP) at the step that it is told."""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from streamd.errors import StreamdError
from streamd.eventlog.journal.changelog_position import ChangelogId
from streamd.eventlog.recovery import published_seq
from streamd.eventlog.writer import LogWriter
from streamd.replica.changelog.kafka import OVERHEAD_BYTES, KafkaProducer, KafkaReader
from streamd.replica.changelog.records import HEAD_BYTES
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.leader import lead
from streamd.settings.loading import KafkaSettings
from tests.eventlog import test_crash as life
from tests.replica.rivals import commit

HEARTBEAT_SECONDS = 0.05


class FenceMember:
    """It leads, follows, or does neither."""

    def __init__(self):
        self.log = None

    def open(self, path, topic, servers, room):
        """Take a directory and a topic, with records that hold about `room` bytes of a commit."""
        self.path, self.topic, self.room = Path(path), topic, room
        self.kafka = KafkaSettings(bootstrap_servers=servers)
        return {}

    def lead(self):
        reader = KafkaReader(self.kafka, ChangelogId(topic=self.topic))
        producer = KafkaProducer(self.kafka, self.topic, HEAD_BYTES + OVERHEAD_BYTES + self.room)
        try:
            publisher = lead(self.path, producer, reader, member=self.path.name, heartbeat_seconds=HEARTBEAT_SECONDS)
            self.log = LogWriter(self.path, life.SCHEMA, life.SEGMENT_EDGES, publisher=publisher)
        except BaseException:
            reader.close()
            producer.close()
            raise
        return {"term": publisher.term, "seq": self.log.seq}

    def commit(self, numbers, step="", at=0):
        """Commit, and be stopped at a step of commit number `at` of these; then wait for all to be shown."""
        for index, number in enumerate(numbers):
            if step and index == at:
                self.stop_at(step)
            commit(self.log, number)
            self.log.show_acknowledged()
        self.log.commits.await_acks()
        return {}

    def stop_at(self, step):
        publisher, publish, show = self.log.commits._publisher, self.log.commits._publisher.publish, self.log.files.publish

        def line_is_durable(*args):
            publisher.publish = publish
            os.kill(os.getpid(), signal.SIGSTOP)
            publish(*args)

        def is_sent(*args):
            publisher.publish = publish
            publish(*args)
            os.kill(os.getpid(), signal.SIGSTOP)

        def is_acknowledged(*args):
            self.log.files.publish = show
            os.kill(os.getpid(), signal.SIGSTOP)
            show(*args)

        if step == "acknowledged":
            self.log.files.publish = is_acknowledged
        else:
            publisher.publish = {"line": line_is_durable, "sent": is_sent}[step]

    def idle(self, seconds):
        """Have nothing to say for some seconds, stopped in between where the parent likes."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.log.show_acknowledged()
            time.sleep(0.01)
        return {}

    def follow(self):
        reader = KafkaReader(self.kafka, ChangelogId(topic=self.topic))
        try:
            follower = Follower(self.path, reader)
            try:
                while follower.lag:
                    follower.step(0.2)
            finally:
                follower.close()
            return {"term": follower.term}
        finally:
            reader.close()

    def close(self):
        log, self.log = self.log, None
        if log is not None:
            log.close()
        return {}


def main():
    member = FenceMember()
    for line in sys.stdin:
        told = json.loads(line)
        try:
            answer = getattr(member, told.pop("do"))(**told)
        except StreamdError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
            # It may find out once more.
            with contextlib.suppress(StreamdError):
                member.close()
        print(json.dumps({"shown": published_seq(member.path)} | answer), flush=True)


if __name__ == "__main__":
    main()

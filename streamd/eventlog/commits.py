"""Makes commits durable and publishes them to readers; with a changelog, once it has acknowledged
them."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from streamd.eventlog.journal.changelog_position import ChangelogPosition
from streamd.eventlog.journal.journal import SegmentState, changed_progress, encode_line
from streamd.eventlog.log_files import LogFiles
from streamd.eventlog.publisher import Publisher
from streamd.eventlog.recovery import finish_replacements


class Commits:
    """Makes commits durable, sends them to a changelog, and publishes those that it has
    acknowledged; without a changelog, all. Owner: the log writer.

    published_seq: the newest commit that readers may use.
    """

    def __init__(self, files: LogFiles, publisher: Publisher | None) -> None:
        """publisher: must have acknowledged all commits in the journal."""
        self._files = files
        self._publisher = publisher
        self._pending: deque[tuple[int, SegmentState | None]] = deque()
        """Commits that are not published, each with the segment it appended to."""
        self._stored: ChangelogPosition | None = None
        """The position in the changelog that is stored in the directory."""
        self.published_seq = files.state.seq
        if publisher is not None:
            position = publisher.acknowledged()
            assert position.seq == files.state.seq, "all that the journal holds is acknowledged"
            files.publish(position.seq, position)
            self._stored = position

    @property
    def num_pending(self) -> int:
        """Commits that are durable and not published."""
        return len(self._pending)

    @property
    def has_changelog(self) -> bool:
        """Whether commits wait for a changelog."""
        return self._publisher is not None

    def append(
        self, segments: Sequence[SegmentState], fields: dict[str, Any], replaces: bool = False
    ) -> None:
        """Steps 2 to 4 of a commit, after its rows are written:

        2. Make the rows durable.
        3. Append the journal's line and make it durable. Without step 2 a crash could leave a line
           that counts missing rows. Then send the commit to the changelog.
        4. Publish it to readers, once it is acknowledged: before that, a commit of another machine
           may replace it.

        segments: those that it changes. fields: of its line, unless equal to those of an empty
        commit. replaces: whether new files replace others.
        """
        before = self._files.state
        term = 0 if self._publisher is None else self._publisher.term
        line = {
            "seq": before.seq + 1,
            # A new changelog counts terms from the start, and a log's terms never fall.
            "term": max(before.term, term),
            "rows": 0,
            "nodes": before.num_nodes,
            "watermark": before.watermark,
            "files": [],
            "progress": changed_progress(before.progress, before.progress),
            "segments": [s.entry() for s in segments],
            **fields,
        }
        encoded = encode_line(line)

        # Steps 2 and 3: make rows and line durable. Begin a journal file only while no commit is
        # pending, because its checkpoint cannot be undone.
        if self._files.journal.is_full:
            self.await_acks()
        self._files.append_lines([(before, encoded)], before.after(line))
        if self._publisher is not None:
            self._publisher.publish(before, line, encoded)
        segment = segments[-1] if segments and not replaces else None
        self._pending.append((self._files.state.seq, segment))

        # A new file replaces the old one before readers see the commit, but not until it is final.
        if replaces:
            self._await_acks_only()
            finish_replacements(self._files.data_dir, self._files.state, self._files.disk)

        # Step 4: publish it to readers. The caller does step 5, Kafka's offsets.
        self.publish_acknowledged()

        # After the first line of a newer format begin a new file: older releases refuse a log by
        # the format number at the start of its newest file.
        if self._files.state.outgrows(before):
            self.await_acks()
            self._files.journal.roll(self._files.state)

    def publish_acknowledged(self) -> None:
        """Step 4 for all commits that are acknowledged."""
        position = None if self._publisher is None else self._publisher.acknowledged()
        acknowledged = self._files.state.seq if position is None else position.seq
        before = self.published_seq
        segment = None
        while self._pending and self._pending[0][0] <= acknowledged:
            self.published_seq, changed = self._pending.popleft()
            segment = changed or segment
        # Write only for a new commit: readers use the time of the last write as that of the commit.
        if self.published_seq > before:
            assert self.published_seq == acknowledged
            self._files.publish(self.published_seq, position, segment)
        elif position is not None and position != self._stored:
            self._files.move(position)
        self._stored = position

    def await_acks(self, max_pending: int = 0) -> None:
        """Publish acknowledged commits until at most `max_pending` are pending."""
        while len(self._pending) > max_pending:
            self.publish_acknowledged()
            if len(self._pending) > max_pending:
                self.wait()

    def _await_acks_only(self) -> None:
        """Wait until all commits are acknowledged, without publishing them."""
        while self._publisher is not None and self._pending:
            if self._publisher.acknowledged().seq >= self._files.state.seq:
                return
            self._publisher.wait()

    def wait(self) -> None:
        """Wait a little for a further acknowledgement."""
        if self._publisher is not None:
            self._publisher.wait()

    def heartbeat(self) -> None:
        """Show other machines that the writer runs."""
        if self._publisher is not None:
            self._publisher.heartbeat()

    def close(self) -> None:
        """Close the connection to the changelog; pending commits stay unpublished."""
        if self._publisher is not None:
            self._publisher.close()

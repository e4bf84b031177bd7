"""What must be true at each commit that readers are shown, against a plain model: the records of the broker, by offset."""

import bisect
import contextlib
import json

from crc32c import crc32c

from streamd.eventlog.reader import LogReader
from tests.simulator.history import Told
from tests.simulator.model import Model
from tests.simulator.records import START, is_aborted
from tests.simulator.scheduler import Failure


class CutShort(Exception):
    """Several commits were shown at once, of which one is a compaction's: rows of those before it may be gone before anybody could look."""


class Directory:
    """What the checks know of one data directory. shown: the newest commit that readers were shown; compared: up to which its lines are
    compared since its process began."""

    def __init__(self, name, path):
        self.name, self.path, self.shown, self.compared, self.reader, self._inode = name, path, 0, 0, None, 0

    def refreshed(self):
        """A reader of what is shown; a manifest may have put another log into the place of the one that was read."""
        inode = (self.path / "published").stat().st_ino
        if self.reader is not None and inode == self._inode:
            self.reader.refresh()
        # A reader ends at a change of the schema, which it finds as it reads on.
        if self.reader is None or self.reader.superseded or inode != self._inode:
            self.reader, self._inode = LogReader.open(self.path), inode
        return self.reader


class Checks:
    """The one history that all directories show, and what it says. Owner: the world. history: (checksum, fields) of the lines that were shown
    anywhere, from commit 1. topics: of events."""

    def __init__(self, broker):
        self._broker, self.topics = broker, ["events"]
        self._told = Told(broker)
        self._directories = []
        self.history, self.model = [], Model(broker, self.is_letter)
        self._letters, self._letters_read = set(), {}
        self._lost_letters = set()
        """Dead letters that there were when a volume was lost."""

    def begin(self, directory):
        """Another process opens a directory: all that is there is looked at again."""
        directory.compared, directory.reader = 0, None
        if directory not in self._directories:
            self._directories.append(directory)
        self._letters_read.clear()

    def look(self, directory):
        """Compare what a directory has just shown. Raises: Failure."""
        seq = int.from_bytes((directory.path / "published").read_bytes()[:8], "little")
        if seq < directory.shown:
            raise Failure(f"{directory.name} shows commit {seq}, and has shown {directory.shown}")
        directory.shown = seq
        if seq == directory.compared:
            return
        lines = _lines(directory.path, directory.compared, seq)
        new = [fields for number, _, fields in lines if number > len(self.history)]
        has_rewritten = any("revision" in change for fields in new[1:] for change in fields["files"])
        for number, crc, fields in lines:
            if number > len(self.history) + 1:
                raise Failure(f"{directory.name} shows commit {number}, the one before was shown nowhere")
            if number <= len(self.history):
                if self.history[number - 1][0] != crc:
                    raise Failure(f"{directory.name} shows another commit {number} than was shown: {json.dumps(fields)[:300]}")
            else:
                self._told.check(number, crc)
                self.history.append((crc, fields))
                self._take(directory, fields, has_rewritten)
        directory.compared = seq

    def _take(self, directory, fields, has_rewritten):
        try:
            self.model.take(directory, fields)
        except Exception as error:
            if has_rewritten:
                raise CutShort from error
            raise

    def is_letter(self, where):
        """Whether the machine that led has a dead letter of an event."""
        if not self._has_letter(where):
            self.read_letters()
        return self._has_letter(where)

    def _has_letter(self, where):
        return any(found in letters for found in (where, (*where[:3], -1)) for letters in (self._letters, self._lost_letters))

    def read_letters(self):
        """Read those that are new. Also called before a purge replaces a file."""
        for path in [p for d in self._directories for p in (d.path / "deadletter").glob("*.jsonl")]:
            # Lines behind those that were read; a power cut may have torn some of them.
            stat = path.stat()
            at = self._letters_read.get(stat.st_ino, 0)
            if stat.st_size == at:
                continue
            with path.open("rb") as file:
                file.seek(at)
                data = file.read()
            self._letters_read[stat.st_ino] = at + data.rfind(b"\n") + 1
            for text in data.split(b"\n"):
                with contextlib.suppress(ValueError):
                    letter = json.loads(text.decode())
                    self._letters.add((letter["topic_id"], letter["partition"], letter["offset"], letter["index"]))

    def lose(self, directory):
        """A directory is lost, with its dead letters; the next one in its place may show what is older."""
        self.read_letters()
        self._lost_letters |= self._letters
        self._letters_read.clear()
        directory.shown = directory.compared = 0
        directory.reader = None

    def check_letters(self):
        """All dead letters are still there. Raises: Failure."""
        self._letters.clear()
        self._letters_read.clear()
        if gone := [where for where in self.model.letters if not self.is_letter(where) and not self.model.may_be_purged(where)]:
            raise Failure(f"dead letters are gone: {gone[:5]}, {len(gone)} in all")

    def unread(self):
        """What the log lacks of the topics, in words; "" where it has all."""
        if gone := [name for name in self.topics if name not in self._broker.topics]:
            return f"there is no topic {gone[0]}"
        for partition in [p for name in self.topics for p in self._broker.topics[name].partitions]:
            topic = partition.topic
            offset, index, ahead = self.model.places.get((topic.id, partition.number), START)
            wanted = max((e.offset + 1 for e in partition.history if e.told and not is_aborted(e)), default=0)
            if offset < wanted or ahead:
                return f"{topic.name}-{partition.number} is at {offset}, {index}, {ahead} of {wanted}"
        return ""


def _lines(path, after, until):
    """(number, checksum, fields) of the lines of commits, from the journal's files. Raises: Failure where one is missing or damaged."""
    found = {}
    files = sorted((path / "journal").glob("*.journal"))
    # A file is named by the first commit that may follow.
    first = max(0, bisect.bisect_right(files, after + 1, key=lambda file: int(file.stem)) - 1)
    for file in files[first:]:
        texts = file.read_bytes().split(b"\n")[1:-1]
        # A disk that lied may have lost the last line of a file; the checkpoint of the next one has what it said.
        if texts and file is not files[-1] and not _is_whole(texts[-1]):
            texts.pop()
        for text in reversed(texts):
            if not _is_whole(text):
                raise Failure(f"{path.name}: a line of {file.name} before commit {until} is damaged: {text[:100]}")
            fields = json.loads(text[9:])
            if fields["seq"] <= after:
                break
            if fields["seq"] <= until:
                found[fields["seq"]] = text[:8], fields
    if not found or max(found) != until:
        raise Failure(f"{path.name} shows commit {until}, and its journal ends at {max(found, default=after)}")
    return [(seq, *found[seq]) for seq in sorted(found)]


def _is_whole(text):
    return text[:8] == b"%08x" % crc32c(text[9:])

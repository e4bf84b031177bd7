"""What must be true at each commit that readers are shown, against a plain model: the records of the broker, by offset."""

import bisect
import contextlib
import json

import numpy as np
from crc32c import crc32c

from streamd.eventlog.reader import LogReader
from tests.simulator.broker import ABORTED, OPEN
from tests.simulator.history import Told
from tests.simulator.scheduler import Failure

START = (-1, 0, ())


class Line:
    """A commit as the first directory that showed it has it."""

    def __init__(self, crc, fields):
        self.crc, self.fields = crc, fields


class Directory:
    """What the checks know of one data directory. shown: the newest commit that readers were shown; compared: up to which its lines are
    compared since its process began."""

    def __init__(self, name, path):
        self.name, self.path, self.shown, self.compared, self.reader = name, path, 0, 0, None


class Checks:
    """The one history that all directories show, and what it says. Owner: the world.

    history: the lines shown anywhere, from commit 1. places: (topic, partition) -> the position of the newest line there.
    """

    def __init__(self, broker):
        self._broker = broker
        self._told = Told(broker)
        self._directories = []
        self.history, self.places, self.num_edges, self.newest_us = [], {}, 0, 0
        self._letters, self._letters_read, self.num_refused = set(), {}, 0

    def begin(self, directory):
        """Another process opens a directory: all that is there is looked at again."""
        directory.compared, directory.reader = 0, None
        if directory not in self._directories:
            self._directories.append(directory)
        self._letters_read.clear()

    def look(self, directory):
        """Compare what a directory has just shown. Raises: Failure."""
        raw = (directory.path / "published").read_bytes()[:8]
        seq = int.from_bytes(raw, "little")
        if seq < directory.shown:
            raise Failure(f"{directory.name} shows commit {seq}, and has shown {directory.shown}")
        directory.shown = seq
        if seq == directory.compared:
            return
        for number, crc, fields in _lines(directory.path, directory.compared, seq):
            if number > len(self.history) + 1:
                raise Failure(f"{directory.name} shows commit {number}, the one before was shown nowhere")
            if number <= len(self.history):
                if self.history[number - 1].crc != crc:
                    raise Failure(f"{directory.name} shows another commit {number}: {fields}, not {self.history[number - 1].fields}")
            else:
                self._told.check(number, crc)
                self.history.append(Line(crc, fields))
                self._take(directory, fields)
        directory.compared = seq

    def _take(self, directory, fields):
        """A line that is shown for the first time: its rows are the events between the positions, each once."""
        due, due_refused = {}, []
        for topic, parts in fields["progress"]["positions"].items():
            for number, (offset, index, ahead, *_) in parts.items():
                partition = self._broker.topics[topic].partitions[int(number)]
                before = self.places.get((topic, int(number)), START)
                after = offset, index, tuple(tuple(run) for run in ahead)
                self.places[topic, int(number)] = after
                for place, item in _passed(partition, before, after):
                    where = (topic, int(number), *place)
                    if item.id:
                        due[item.id] = item, where
                    else:
                        due_refused.append(where)
        segments = fields["segments"]
        end = max([self.num_edges, *(first + rows for first, rows, *_ in segments)])
        found, times = self._rows(directory, self.num_edges, end)
        if len(times) and (np.diff(times) < 0).any() or len(times) and times[0] < self.newest_us:
            raise Failure(f"commit {fields['seq']}: times fall")
        for event, when in zip(found.tolist(), times.tolist(), strict=True):
            item, _ = due.pop(event, (None, None))
            if item is None:
                raise Failure(f"commit {fields['seq']} has event {event}, which its positions do not cover, or twice")
            if when < item.time_us:
                raise Failure(f"commit {fields['seq']} has {item} with time {when}")
        missing = [where for _, where in due.values()]
        for where in (*missing, *due_refused):
            if not self._is_letter(where):
                item = next((i for i, w in due.values() if w == where), "a refused one")
                raise Failure(f"commit {fields['seq']} passes {item} at {where}, which is neither in the log nor a dead letter")
        self.num_refused += len(missing) + len(due_refused)
        self.num_edges, self.newest_us = end, int(times[-1]) if len(times) else self.newest_us

    def _rows(self, directory, first, end):
        """(ids, times) of events that the log has."""
        if directory.reader is None or directory.reader.superseded:
            directory.reader = LogReader.open(directory.path)
        else:
            directory.reader.refresh()
        if first == end:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        events = np.arange(first, end)
        return directory.reader.features_of(events)[:, 0].astype(np.int64), directory.reader.time_of(events)

    def _is_letter(self, where):
        """Whether the machine that led has a dead letter of an event."""
        if where not in self._letters:
            for path in [p for d in self._directories for p in (d.path / "deadletter").glob("*.jsonl")]:
                # Lines behind those that were read; a power cut may have torn some of them.
                at = self._letters_read.get(path.stat().st_ino, 0)
                data = path.read_bytes()
                self._letters_read[path.stat().st_ino] = data.rfind(b"\n") + 1
                for text in data[at:].split(b"\n"):
                    with contextlib.suppress(ValueError):
                        letter = json.loads(text.decode())
                        self._letters.add((letter["topic"], letter["partition"], letter["offset"], letter["index"]))
        return where in self._letters or (*where[:3], -1) in self._letters

    def unread(self):
        """What the log lacks of the topics, in words; "" where it has all."""
        for topic in ("events",):
            for partition in self._broker.topics[topic].partitions:
                offset, index, ahead = self.places.get((topic, partition.number), START)
                wanted = max((e.offset + 1 for e in partition.history if e.told and not _is_aborted(e)), default=0)
                if offset < wanted or ahead:
                    return f"{topic}-{partition.number} is at {offset}, {index}, {ahead} of {wanted}"
        return ""


def _is_aborted(entry):
    return entry.transaction is not None and entry.transaction.state == ABORTED


def _passed(partition, before, after):
    """((offset, index), item) of the events that a position has and the one before has not. Raises: Failure where it falls."""
    base, base_ahead = before[:2], _ahead(partition, before[2])
    end, end_ahead = after[:2], _ahead(partition, after[2])
    if end < base:
        raise Failure(f"{partition.topic.name}-{partition.number} falls from {before} to {after}")
    if lost := [place for place in base_ahead if place >= end and place not in end_ahead]:
        raise Failure(f"{partition.topic.name}-{partition.number} forgets {lost} ahead, from {before} to {after}")
    for offset in range(max(base[0], 0), min(end[0] + 1, len(partition.history))):
        for place, item in _items(partition, offset):
            if base <= place < end and place not in base_ahead:
                yield place, item
    for place, item in end_ahead.items():
        if place not in base_ahead and place >= end:
            yield place, item


def _items(partition, offset):
    """Events that a record has for whoever reads what is committed."""
    entry = partition.history[offset]
    if entry.transaction is not None and entry.transaction.state == OPEN and entry.told:
        return [((offset, 0), None)]
    if entry.told is None or _is_aborted(entry):
        return []
    return [((offset, index), item) for index, item in enumerate(entry.told)]


def _ahead(partition, runs):
    """The events of runs ahead, by place."""
    out = {}
    for offset, index, *last in runs:
        end = tuple(last) or (offset, index)
        for at in range(offset, end[0] + 1):
            out |= {place: item for place, item in _items(partition, at) if (offset, index) <= place <= end}
    return out


def _lines(path, after, until):
    """(number, checksum, fields) of the lines of commits, from the journal's files. Raises: Failure where one is missing or damaged."""
    found = {}
    files = sorted((path / "journal").glob("*.journal"))
    # A file is named by the first commit that may follow.
    first = max(0, bisect.bisect_right(files, after + 1, key=lambda file: int(file.stem)) - 1)
    for file in files[first:]:
        for text in file.read_bytes().split(b"\n")[1:-1]:
            fields = json.loads(text[9:])
            if after < fields["seq"] <= until:
                if int(text[:8], 16) != crc32c(text[9:]):
                    raise Failure(f"{path.name}: the line of commit {fields['seq']} is damaged")
                found[fields["seq"]] = text[:8], fields
    if not found or max(found) != until:
        raise Failure(f"{path.name} shows commit {until}, and its journal ends at {max(found, default=after)}")
    return [(seq, *found[seq]) for seq in sorted(found)]

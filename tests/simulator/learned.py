"""The learned lines of the log as plain lists, built from its published commits: moves, windows and versions must follow each other."""

import json

import msgspec

from streamd.eventlog.layout import LEARNED, MOVES, WINDOWS
from streamd.registry.journal import Move
from streamd.registry.version_lines import VersionLine
from streamd.windows.history import WindowRecord
from tests.simulator.scheduler import Failure


class Learned:
    """Owner: the model. moves, windows: as they were made. versions: name -> whether it has its memory, of those that were not removed.
    may_repeat: whether a trainer may have lost its checkpoint, and repeats windows. scribes: who wrote the lines, None for a trainer."""

    def __init__(self):
        self.moves, self.windows, self.versions, self.may_repeat, self.scribes = [], [], {}, False, None

    def take(self, directory, fields):
        """Take the lines of a commit that is shown for the first time. Raises: Failure."""
        found = {}
        for change in fields["files"]:
            if change["path"] in LEARNED:
                first, end = change["bytes"]
                with (directory.path / change["path"]).open("rb") as file:
                    file.seek(first)
                    found[change["path"]] = file.read(end - first).splitlines()
                if self.scribes is not None:
                    self.scribes.take(fields["seq"], first, found[change["path"]])
        for path, lines in sorted(found.items(), key=lambda one: LEARNED.index(one[0]), reverse=True):
            for line in lines:
                if json.loads(line)["seq"] != fields["seq"]:
                    raise Failure(f"commit {fields['seq']} has a line of another: {line}")
                if self.scribes is not None:
                    continue
                try:
                    self._take(path, line)
                except AssertionError as error:
                    raise Failure(f"commit {fields['seq']} has {line}: {error}") from error

    def _take(self, path, line):
        if path == MOVES:
            self._take_move(msgspec.json.decode(line, type=Move))
        elif path == WINDOWS:
            record = msgspec.json.decode(line, type=WindowRecord)
            end = self.windows[-1].end_edge if self.windows else 0
            assert record.first_edge == end or (self.may_repeat and record.first_edge < end), f"the window before ends at {end}"
            # On several machines the models topic has the versions.
            assert record.version in self.versions or not self.versions or self.may_repeat, "its version is not in the log"
            self.windows.append(record)
        else:
            self._take_version(msgspec.json.decode(line, type=VersionLine))

    def _take_move(self, move):
        last = self.moves[-1] if self.moves else move
        champion, shadow = last.champion, last.shadow
        wanted = {"promote": (move.champion, shadow), "rollback": (shadow, shadow), "prove": (champion, move.shadow)}[move.action]
        assert (move.champion, move.shadow) == wanted, f"it follows {last}"
        assert move not in self.moves, "it is there twice"
        assert {move.champion, move.shadow} <= self.versions.keys() or self.may_repeat, "it names a version that the log does not have"
        self.moves.append(move)

    def _take_version(self, line):
        if line.removed == "version":
            assert self.versions.pop(line.name, None) is not None, "there is no such version"
            named = self.moves[-1] if self.moves else None
            assert named is None or line.name != named.shadow, "the shadow is removed"
        elif line.removed == "memory":
            assert self.versions.get(line.name), "there is no such version, or it has no memory"
            self.versions[line.name] = False
        else:
            assert line.name not in self.versions, "it was made before"
            self.versions[line.name] = True

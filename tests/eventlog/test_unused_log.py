"""A log without a commit goes with the command that created it and failed."""

import threading
import time

import pytest

from streamd.errors import StreamdError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.recovery import lock_directory
from streamd.eventlog.unused_log import remove_unused_log
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from tests.builders import batch

SCHEMA = Schema(0, 0, 0)


def fail_in(folder, error, commits=0):
    with remove_unused_log(folder):
        writer = LogWriter(folder, SCHEMA)
        try:
            for n in range(commits):
                writer.commit(batch(SCHEMA, [0], [1], [n], new_keys=() if n else ("a", "b")), Progress(), n)
            raise error
        finally:
            writer.close()


@pytest.mark.parametrize("error", [StreamdError("no."), KeyboardInterrupt(), OSError("disk")])
def test_an_error_before_the_first_commit_leaves_no_log_and_no_folder(tmp_path, error):
    with pytest.raises(type(error)):
        fail_in(tmp_path / "deep/log", error)
    assert list(tmp_path.iterdir()) == []


def test_other_files_stay(tmp_path):
    (tmp_path / "deadletter").mkdir()
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(StreamdError):
        fail_in(tmp_path, StreamdError("no."))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deadletter", "notes"]


def test_a_log_with_a_commit_stays_and_so_does_one_that_was_there(tmp_path):
    with pytest.raises(StreamdError):
        fail_in(tmp_path / "a", StreamdError("no."), commits=1)
    assert LogReader.open(tmp_path / "a").num_edges == 1
    LogWriter(tmp_path / "b", SCHEMA).close()
    with pytest.raises(StreamdError):
        fail_in(tmp_path / "b", StreamdError("no."))
    assert LogReader.open(tmp_path / "b") is not None


def test_a_process_that_waited_for_the_lock_of_a_removed_log_makes_a_log_of_its_own(tmp_path):
    folder, began = tmp_path / "log", threading.Event()
    made = []

    def wait():
        began.set()
        made.append(LogWriter(folder, SCHEMA, lock_seconds=10))

    other = threading.Thread(target=wait)
    with pytest.raises(StreamdError), remove_unused_log(folder):
        writer = LogWriter(folder, SCHEMA)
        # Removed as by the command, which locks the directory again, while the other waits.
        other.start()
        began.wait()
        time.sleep(0.3)
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
        writer.close()
        raise StreamdError("no.")
    other.join()
    made[0].commit(batch(SCHEMA, [0], [1], [5], new_keys=("a", "b")), Progress(), 5)
    made[0].close()
    assert LogReader.open(folder).num_edges == 1
    lock_directory(folder / "lock")

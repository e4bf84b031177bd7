"""Entries of the outbox: in the log once, in order, whole, from any number of processes, and gone only once they are published."""

import dataclasses
import multiprocessing
import threading

import pytest
from filelock import FileLock

from streamd.eventlog.entries import MAX_TAKEN_BYTES, EntryOutbox, LogEntry
from streamd.eventlog.journal.journal import decode_line, journal_files
from streamd.eventlog.layout import MOVES, VERSIONS, WINDOWS
from streamd.eventlog.learned_log import LearnedLog
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema, empty_batch
from streamd.storage import DISK
from tests.builders import batch
from tests.faults import Crash, FaultyDisk


def outbox_of(path, disk=DISK):
    return EntryOutbox(LearnedLog(path), disk)


def put(path, *lines, follows=None, disk=DISK):
    return outbox_of(path, disk).put(lines, follows)


def first_line(path):
    return decode_line(journal_files(path / "journal")[-1].read_bytes().splitlines(True)[0])


def test_entries_come_with_the_next_commit_or_without_events_and_go_from_the_outbox(tmp_path):
    writer, learned = LogWriter(tmp_path, Schema()), LearnedLog(tmp_path)
    writer.take_entries()
    assert writer.seq == 0, "nothing waits, nothing is committed"
    put(tmp_path, (VERSIONS, b'{"v":1}\n'), (MOVES, b'{"m":1}\n'))
    put(tmp_path, (WINDOWS, b'{"w":1}\n'), (WINDOWS, b'{"w":2}\n'))
    assert [e.number for e in outbox_of(tmp_path).look().waiting] == [1, 2] and learned.lines(MOVES) == []
    writer.commit(dataclasses.replace(batch(Schema(), [0], [1], [5], ("a", "b"))), Progress(), 5)
    assert (writer.seq, writer.state.taken, outbox_of(tmp_path).look().waiting) == (1, (0, 2), [])
    assert (learned.lines(VERSIONS), learned.lines(MOVES), learned.lines(WINDOWS)) == ([b'{"v":1}'], [b'{"m":1}'], [b'{"w":1}', b'{"w":2}'])

    assert put(tmp_path, (MOVES, b'{"m":2}\n')).number == 3, "the log says up to which number it has them"
    writer.take_entries()
    assert (writer.seq, writer.num_edges, learned.lines(MOVES)) == (2, 1, [b'{"m":1}', b'{"m":2}'])
    writer.close()
    again = LogWriter(tmp_path, Schema())
    assert again.state.taken == (0, 3) and verify_log(tmp_path) == (2, [])
    again.close()


def test_the_journal_has_format_6_from_the_first_entry_on_and_not_before(tmp_path):
    writer = LogWriter(tmp_path, Schema())
    writer.commit(empty_batch(Schema()), Progress(), 1)
    assert first_line(tmp_path)["format"] == 3, "the release before can still open it"
    put(tmp_path, (MOVES, b"{}\n"))
    writer.take_entries()
    line = first_line(tmp_path)
    assert (line["format"], line["taken"], line["has_runs"]) == (6, [0, 1], False)
    assert writer.state.restored(line) == writer.state
    writer.close()


def test_an_entry_that_follows_another_move_is_refused_and_its_number_is_not_used_again(tmp_path):
    writer, learned = LogWriter(tmp_path, Schema()), LearnedLog(tmp_path)
    put(tmp_path, (MOVES, b"{1}\n"), follows=0)
    put(tmp_path, (MOVES, b"{2}\n"), follows=0)
    put(tmp_path, (MOVES, b"{3}\n"), follows=4)
    writer.take_entries()
    assert learned.lines(MOVES) == [b"{1}", b"{3}"] and outbox_of(tmp_path).look().waiting == []
    put(tmp_path, (MOVES, b"{4}\n"), follows=4)
    writer.take_entries()
    assert (learned.lines(MOVES), writer.state.taken) == ([b"{1}", b"{3}"], (0, 4))
    assert put(tmp_path, (MOVES, b"{5}\n"), follows=8).number == 5
    writer.close()


@pytest.mark.parametrize("content", [b"", b"00000000 {}\n", b"torn", None])
def test_a_damaged_entry_is_refused_and_the_next_one_is_taken(tmp_path, content):
    writer, learned = LogWriter(tmp_path, Schema()), LearnedLog(tmp_path)
    damaged = tmp_path / "outbox" / put(tmp_path, (MOVES, b"{1}\n")).name
    put(tmp_path, (MOVES, b"{2}\n"))
    if content is None:
        damaged.write_bytes(LogEntry(term=0, number=1, lines=(("nodes.keys", b"x\n"),)).encode())
    else:
        damaged.write_bytes(content)
    writer.take_entries()
    assert learned.lines(MOVES) == [b"{2}"] and not damaged.exists()
    writer.close()


def test_entries_for_another_term_are_removed_at_the_start_and_numbers_begin_again(tmp_path):
    writer = LogWriter(tmp_path, Schema())
    put(tmp_path, (MOVES, b"{1}\n"))
    writer.take_entries()
    (tmp_path / "outbox" / LogEntry(term=7, number=9, lines=()).name).write_bytes(LogEntry(term=7, number=9, lines=((MOVES, b"{x}\n"),)).encode())
    assert outbox_of(tmp_path).look().waiting == []
    writer.close()
    writer = LogWriter(tmp_path, Schema())
    writer.take_entries()
    assert not list((tmp_path / "outbox").glob("*.entry")) and LearnedLog(tmp_path).lines(MOVES) == [b"{1}"]
    writer.close()


def test_a_commit_takes_no_more_than_a_bounded_part_of_a_full_outbox(tmp_path):
    writer, line = LogWriter(tmp_path, Schema()), b"{" + b"x" * (MAX_TAKEN_BYTES // 2) + b"}\n"
    for _ in range(5):
        put(tmp_path, (WINDOWS, line))
    writer.take_entries()
    assert writer.state.files[WINDOWS].num_bytes == 2 * len(line) and len(outbox_of(tmp_path).look().waiting) == 3
    while outbox_of(tmp_path).look().waiting:
        writer.take_entries()
    assert (writer.seq, writer.state.files[WINDOWS].num_bytes) == (3, 5 * len(line))
    writer.close()


def test_a_list_of_the_folder_that_lacks_an_earlier_entry_does_not_lose_it(tmp_path, monkeypatch):
    from streamd.eventlog import entries as outbox

    writer, listed = LogWriter(tmp_path, Schema()), []
    for number in (1, 2, 3):
        put(tmp_path, (MOVES, b"{%d}\n" % number))
    real = outbox.numbers_in
    monkeypatch.setattr(outbox, "numbers_in", lambda folder: listed.pop(0) if listed else real(folder))
    listed += [{0: [2]}, {0: [2]}]
    assert writer._intake.has_waiting()
    listed += [{0: [2]}]
    writer.take_entries()
    writer.take_entries()
    assert LearnedLog(tmp_path).lines(MOVES) == [b"{1}", b"{2}", b"{3}"]
    writer.close()


def put_many(path, name, number):
    """A process that puts entries under the lock that all of them share, and checks that nothing came between its check and its entry."""
    for at in range(number):
        with FileLock(path / "shared.lock"):
            outbox = outbox_of(path)
            outbox.put(((MOVES, f'{{"{name}":{at}}}\n'.encode()),), outbox.look().num_bytes(MOVES))


def test_processes_that_put_at_the_same_time_lose_nothing_and_double_nothing(tmp_path):
    """Four processes put under one lock, while the log's writer commits and starts again now and then."""
    writer = LogWriter(tmp_path, Schema())
    context = multiprocessing.get_context("spawn")
    several = [context.Process(target=put_many, args=(tmp_path, name, 15)) for name in ("trainer", "server", "promote", "pruning")]
    for one in several:
        one.start()
    ended, rounds = threading.Event(), 0
    while not ended.is_set():
        if not any(one.is_alive() for one in several):
            ended.set()
        writer.take_entries()
        rounds += 1
        if rounds % 50 == 0:
            writer.close()
            writer = LogWriter(tmp_path, Schema())
    for one in several:
        one.join()
        assert one.exitcode == 0
    while outbox_of(tmp_path).look().waiting:
        writer.take_entries()
    writer.close()
    lines = [line.decode() for line in LearnedLog(tmp_path).lines(MOVES)]
    assert len(lines) == len(set(lines)) == 60, "no entry was refused: each one knew all before it"
    for name in ("trainer", "server", "promote", "pruning"):
        assert [x for x in lines if name in x] == [f'{{"{name}":{at}}}' for at in range(15)]
    assert verify_log(tmp_path)[1] == []


@pytest.mark.parametrize("mode", ["kill", "torn", "power"])
def test_a_stop_at_any_call_of_putting_leaves_an_entry_whole_or_not_at_all(tmp_path, mode):
    trial = FaultyDisk()
    LogWriter(tmp_path / "trial", Schema()).close()
    put(tmp_path / "trial", (MOVES, b"{1}\n"), disk=trial)
    seen = set()
    for at in range(trial.calls + 1):
        path = tmp_path / f"{at}"
        LogWriter(path, Schema()).close()
        disk, done = FaultyDisk(at, mode), False
        try:
            put(path, (MOVES, b"{1}\n"), disk=disk)
            done = True
        except Crash:
            pass
        waiting = outbox_of(path).look().waiting
        assert [e.lines for e in waiting] in ([], [((MOVES, b"{1}\n"),)]) and (waiting or not done)
        # Whoever comes next finds the number free or taken, and no scratch file stays.
        assert put(path, (MOVES, b"{2}\n")).number == len(waiting) + 1
        writer = LogWriter(path, Schema())
        writer.take_entries()
        writer.close()
        assert LearnedLog(path).lines(MOVES) == [b"{1}"] * len(waiting) + [b"{2}"]
        assert [p.name for p in (path / "outbox").iterdir() if not p.name.startswith("stash-")] == ["term"]
        seen.add(len(waiting))
    assert seen == {0, 1}


def test_a_volume_without_links_takes_entries_too(tmp_path):
    class NoLinks(FaultyDisk):
        def link(self, old, new):
            raise PermissionError(1, "no links here")

    LogWriter(tmp_path, Schema()).close()
    assert put(tmp_path, (MOVES, b"{1}\n"), disk=NoLinks()).number == 1
    assert [e.lines for e in outbox_of(tmp_path).look().waiting] == [((MOVES, b"{1}\n"),)]

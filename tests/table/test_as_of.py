"""A log as of an older commit: events, windows, versions and moves as they were, without what was deleted since."""

import pytest

import streamd
from streamd.errors import StreamdError
from streamd.eventlog.journal import journal
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.registry import Registry
from streamd.registry.journal import ModelJournal
from streamd.settings.paths import Paths
from streamd.training.window_records import WindowRecords
from tests.builders import batch, compact, settings, stream, write_log
from tests.registry.test_registry import candidate
from tests.table.logs import delete
from tests.training.test_window_records import record


def columns(snapshot):
    """All that a snapshot says: its events, and its windows, versions and moves in short."""
    moves = [(row["action"], row["champion"]) for row in snapshot.moves().read_all().to_pylist()]
    versions = [(row["version"], row["parent"], row["end_event"]) for row in snapshot.versions().read_all().to_pylist()]
    return {"events": snapshot.events(columns=["event", "src", "dst", "time"]).read_all().to_pydict(), "moves": moves,
            "windows": [row["end_event"] for row in snapshot.windows().read_all().to_pylist()], "versions": versions}


def as_of(path, commit):
    with streamd.open_log(path, as_of=commit) as snapshot:
        assert snapshot.commit == commit
        return columns(snapshot)


def test_each_older_commit_is_read_as_a_snapshot_of_its_time_read_it(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "FILE_LINES", 4)
    src, dst, when = stream(600)
    write_log(tmp_path, src[:100], dst[:100], when[:100], Schema(1))
    chosen = settings(tmp_path)
    registry = Registry(Paths.of(chosen, "serve"), 2, chosen.log)
    records = WindowRecords(tmp_path, ModelJournal(tmp_path / "models", log=tmp_path))
    records.resume(0)
    log = LogWriter(tmp_path, Schema(1))
    then, open_since = {}, []

    def look():
        snapshot = streamd.open_log(tmp_path)
        then[snapshot.commit] = columns(snapshot)
        open_since.append(snapshot)

    look()
    for n in range(1, 6):
        part = slice(100 * n, 100 * n + 50)
        log.commit(batch(log.schema, src[part], dst[part], when[part]), Progress(), int(when[100 * n + 49]))
        look()
        registry.publish(candidate(n))
        records.add(record(n))
        records.send()
        log.show_acknowledged()
        look()
    registry.rollback("operator", "worse")
    look()
    # Two are kept besides the shadow, so two were removed.
    assert [len(found["versions"]) for found in then.values()] == [0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3]
    assert {commit: as_of(tmp_path, commit) for commit in then} == then
    # A snapshot reads its commit's rows, however late it reads them.
    assert {snapshot.commit: columns(snapshot) for snapshot in open_since} == then

    # What is deleted later is left out at once, and refused once compaction has removed it.
    delete(log, [int(src[120])])
    for commit, found in then.items():
        events = as_of(tmp_path, commit)["events"]
        assert int(src[120]) not in events["src"] + events["dst"] and set(events["event"]) <= set(found["events"]["event"])
    log.commit(batch(log.schema, src[560:570], dst[560:570], when[560:570]), Progress(), int(when[569]))
    delete(log, edges=[(int(src[565]), int(dst[565]), int(when[565]), 0)])
    assert as_of(tmp_path, max(then))["moves"] == then[max(then)]["moves"], "a delete of a later event hides none of these"
    for snapshot in open_since:
        snapshot.close()
    assert compact(log).edges
    for commit in then:
        with pytest.raises(StreamdError, match=f"cannot be opened as of commit {commit} any more: a later commit has replaced"):
            streamd.open_log(tmp_path, as_of=commit)
    newest = log.seq
    log.close()
    assert as_of(tmp_path, newest)["moves"][-1] == ("rollback", then[max(then)]["moves"][-1][1])
    with pytest.raises(StreamdError, match=f"has no commit {newest + 1}: its newest is {newest}"):
        streamd.open_log(tmp_path, as_of=newest + 1)


def test_a_commit_of_which_retention_has_dropped_events_is_refused(tmp_path):
    write_log(tmp_path, *stream(600), segment_edges=100)
    log = LogWriter(tmp_path, Schema(), 100)
    log.drop_before(300)
    log.close()
    with pytest.raises(StreamdError, match="cannot be opened as of commit 2 any more"):
        streamd.open_log(tmp_path, as_of=2)
    with streamd.open_log(tmp_path, as_of=log.seq) as snapshot:
        assert snapshot.first_event == 300

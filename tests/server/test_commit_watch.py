"""The notice of a commit wakes the engine; without it the engine looks at the log itself."""

import asyncio
import sys

import numpy as np
import pytest
from structlog.testing import capture_logs

from streamd.eventlog.writer import LogWriter
from streamd.events import Progress
from streamd.server.engine import commit_watch, engine
from streamd.server.engine.commit_watch import watch_commits
from streamd.server.engine.queue import RequestQueue
from tests.builders import batch, settings, stream, write_log
from tests.server.world import SCHEMA, World, wait

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


def commit_one(path):
    writer = LogWriter(path, SCHEMA)
    later = writer.watermark + 1
    writer.commit(batch(SCHEMA, np.array([5]), np.array([34]), np.array([later])), Progress(), later)
    writer.close()


@on_linux
def test_a_commit_is_noticed_at_once_and_none_after_the_watch_is_closed(tmp_path):
    write_log(tmp_path, *stream(10), SCHEMA)

    async def noticed():
        seen = asyncio.Event()
        with watch_commits(tmp_path, seen.set) as is_watched:
            await asyncio.sleep(0.05)
            assert is_watched and not seen.is_set()
            commit_one(tmp_path)
            await asyncio.wait_for(seen.wait(), 5)
        seen.clear()
        commit_one(tmp_path)
        await asyncio.sleep(0.05)
        return seen.is_set()

    assert asyncio.run(noticed()) is False


@on_linux
def test_a_server_whose_engine_rests_for_long_shows_an_event_when_it_is_committed(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "WATCHED_SECONDS", 3600)
    write_log(tmp_path, *stream(10), SCHEMA)
    world = World(tmp_path)
    world.run()
    wait(lambda: world.engine.status.ready)
    commit_one(tmp_path)
    wait(lambda: world.engine.status.edge == 11)
    world.stop()


def test_where_commits_give_no_notice_it_is_logged_and_events_are_shown_all_the_same(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr(commit_watch, "_open_notices", refused)
    write_log(tmp_path, *stream(10), SCHEMA)
    with capture_logs() as logs:
        world = World(tmp_path).start()
    assert [entry["log_level"] for entry in logs if entry["event"] == "commits_not_watched"] == ["warning"]
    commit_one(tmp_path)
    wait(lambda: world.engine.status.edge == 11)
    world.stop()


def test_what_wakes_the_queue_while_it_yields_ends_its_rest(tmp_path):
    queue = RequestQueue(settings(tmp_path).server)

    async def wait():
        asyncio.get_running_loop().call_soon(queue.wake)
        await asyncio.wait_for(queue.wait(3600), 5)

    asyncio.run(wait())

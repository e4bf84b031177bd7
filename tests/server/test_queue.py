import asyncio
import contextlib
import time

import pytest

from streamd.server.engine import queue as module
from streamd.server.engine.pace import TURN_SECONDS
from streamd.server.engine.queue import STANDING_SHARE, PendingBatch, RequestQueue
from streamd.serving.requests import Embedding, Overloaded, Score
from tests.builders import settings

SCORE = Score("a", tuple("bcdefghij"))


def queue(path, **values):
    return RequestQueue(settings(path, **{f"server__{k}": v for k, v in values.items()}).server)


async def asked(queue, count, request=SCORE):
    """Requests that wait in a queue; they end with the block."""
    tasks = [asyncio.create_task(queue.answers([request], time.monotonic() + 60)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


@contextlib.asynccontextmanager
async def waiting(queue, count, request=SCORE):
    tasks = await asked(queue, count, request)
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def pass_time(monkeypatch, seconds):
    later = time.monotonic() + seconds
    monkeypatch.setattr(module.time, "monotonic", lambda: later)


def test_a_queue_that_passes_leave_standing_lets_nobody_in_until_all_are_answered(tmp_path, monkeypatch):
    async def scenario():
        limited = queue(tmp_path, deadline_seconds=5)
        async with waiting(limited, 100):
            assert len(limited.take()) == 32
            assert limited.overload() is None
            pass_time(monkeypatch, 1.1 * STANDING_SHARE * 5)
            assert len(limited.take()) == 32
            assert limited.overload() == "more requests arrive than the server can answer"
            while limited.take():
                pass
            assert limited.overload() is None
            monkeypatch.undo()

    asyncio.run(scenario())


def test_requests_that_wait_to_be_parsed_make_a_queue_stand_too(tmp_path, monkeypatch):
    async def scenario():
        limited = queue(tmp_path, deadline_seconds=5)
        turns = [asyncio.create_task(limited.turn()) for _ in range(100)]
        await asyncio.sleep(0)
        limited.take()
        pass_time(monkeypatch, 1.1 * STANDING_SHARE * 5)
        assert limited.overload() == "more requests arrive than the server can answer"
        limited.take()
        limited.take()
        limited.take()
        assert limited.overload() is None
        monkeypatch.undo()
        await asyncio.gather(*turns)

    asyncio.run(scenario())


def test_between_two_passes_as_many_requests_are_parsed_as_a_pass_answers_the_oldest_first(tmp_path):
    async def scenario():
        limited, parsed = queue(tmp_path, max_batch=3), []

        async def one(number):
            await limited.turn()
            parsed.append(number)

        tasks = [asyncio.create_task(one(number)) for number in range(8)]
        await asyncio.sleep(0)
        assert parsed == [0, 1, 2] and len(limited) == 5
        tasks[3].cancel()  # its caller gave up
        await asyncio.sleep(0)
        limited.take()
        await asyncio.sleep(0)
        assert parsed == [0, 1, 2, 4, 5, 6] and len(limited) == 1
        limited.take()
        await asyncio.sleep(0)
        assert parsed[-1] == 7 and not len(limited)
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())


def test_what_came_while_the_process_stood_still_is_let_in(tmp_path, monkeypatch):
    async def scenario():
        limited = queue(tmp_path, deadline_seconds=5)
        async with waiting(limited, 40):
            pass_time(monkeypatch, 3)
            assert limited.overload() is None
            assert len(limited.take()) == 32
            assert limited.overload() is None
            monkeypatch.undo()

    asyncio.run(scenario())


def test_one_more_than_may_wait_is_refused(tmp_path):
    async def scenario():
        limited = queue(tmp_path, max_queue=3)
        async with waiting(limited, 3):
            assert "server.max_queue" in limited.overload()
            with pytest.raises(Overloaded, match="server.max_queue"):
                await limited.answers([SCORE], time.monotonic() + 60)

    asyncio.run(scenario())


def test_a_pass_takes_no_more_than_it_can_answer_in_a_turn_and_at_least_one(tmp_path):
    def taken(seconds_a_request):
        async def scenario():
            limited = queue(tmp_path, max_batch=32)
            async with waiting(limited, 32):
                for _ in range(200):
                    limited.record_pass([PendingBatch([SCORE], 0, 0, print)], seconds_a_request)
                return len(limited.take())

        return asyncio.run(scenario())

    assert taken(TURN_SECONDS / 8) in (8, 9)
    assert taken(1e-6) == 32
    assert taken(10.0) == 1


def test_after_a_pass_that_a_stall_made_long_passes_grow_again(tmp_path):
    async def scenario():
        limited = queue(tmp_path, max_batch=32)
        one = [PendingBatch([SCORE], 0, 0, print)]
        limited.record_pass(one, 40.0)
        for _ in range(150):
            limited.record_pass(one, 1e-5)
        async with waiting(limited, 32, Embedding("a")):
            return len(limited.take())

    assert asyncio.run(scenario()) == 32

import asyncio
import contextlib
import time

import pytest

from streamd.server import queue as module
from streamd.server.pace import TURN_SECONDS
from streamd.server.queue import STANDING_SHARE, PendingBatch, RequestQueue
from streamd.server.requests import Embedding, Overloaded, Score
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


def test_a_burst_is_let_in_whole_and_a_queue_that_stands_lets_nobody_in(tmp_path, monkeypatch):
    async def scenario():
        limited = queue(tmp_path, deadline_seconds=5)
        async with waiting(limited, 100):
            limited.check_load()
            later = time.monotonic() + 1.1 * STANDING_SHARE * 5
            monkeypatch.setattr(module.time, "monotonic", lambda: later)
            with pytest.raises(Overloaded, match="more requests come than can be answered"):
                limited.check_load()

            # Once the oldest are answered and the next one came lately, more are let in.
            while limited.take():
                pass
            limited.check_load()
            monkeypatch.undo()

    asyncio.run(scenario())


def test_one_more_than_may_wait_is_refused(tmp_path):
    async def scenario():
        limited = queue(tmp_path, max_queue=3)
        async with waiting(limited, 3):
            with pytest.raises(Overloaded, match="server.max_queue"):
                limited.check_load()

    asyncio.run(scenario())


def test_a_pass_takes_no_more_than_it_can_answer_in_a_turn_and_at_least_one(tmp_path):
    def taken(seconds_a_request):
        async def scenario():
            limited = queue(tmp_path, max_batch=32)
            async with waiting(limited, 32):
                for _ in range(200):
                    limited.answered([PendingBatch([SCORE], 0, 0, print)], seconds_a_request)
                return len(limited.take())

        return asyncio.run(scenario())

    assert taken(TURN_SECONDS / 8) in (8, 9)
    assert taken(1e-6) == 32
    assert taken(10.0) == 1


def test_after_a_pass_that_a_stall_made_long_passes_grow_again(tmp_path):
    async def scenario():
        limited = queue(tmp_path, max_batch=32)
        one = [PendingBatch([SCORE], 0, 0, print)]
        limited.answered(one, 40.0)
        for _ in range(150):
            limited.answered(one, 1e-5)
        async with waiting(limited, 32, Embedding("a")):
            return len(limited.take())

    assert asyncio.run(scenario()) == 32

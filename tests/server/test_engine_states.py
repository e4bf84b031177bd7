"""The states of the engine: each may follow certain others, and any may fail."""

import itertools

import pytest

from streamd.server.engine.status import MAY_FOLLOW, EngineState, EngineStatus

LIFE = [EngineState.STARTING, EngineState.PREPARING, EngineState.REBUILDING, EngineState.READY]
PATHS = [LIFE[:1], LIFE[:2], LIFE[:3], LIFE, [*LIFE[:2], EngineState.WAITING]]
"""A way to each state but FAILED."""


@pytest.mark.parametrize(("path", "state"), list(itertools.product(PATHS, EngineState)))
def test_a_state_follows_itself_and_those_that_it_may_follow(path, state):
    status = EngineStatus()
    for step in path:
        status.transition(step, step.value)
    if state is path[-1] or state in MAY_FOLLOW[path[-1]]:
        status.transition(state, "next")
        assert (status.state, status.why, status.ready) == (state, "next", state is EngineState.READY)
    else:
        with pytest.raises(AssertionError, match=f"{path[-1].name} -> {state.name}"):
            status.transition(state, "next")
        assert (status.state, status.why) == (path[-1], path[-1].value)


@pytest.mark.parametrize("path", PATHS)
def test_the_engine_may_fail_in_any_state_and_stays_failed(path):
    status = EngineStatus()
    for step in path:
        status.transition(step, step.value)
    status.fail(ValueError("a reason"))
    assert status.state is EngineState.FAILED and not status.ready and status.why == "the engine failed: a reason"
    with pytest.raises(AssertionError):
        status.transition(EngineState.READY, "answering")


def test_the_heartbeat_has_the_words_that_page_and_doctor_know():
    assert [state.value for state in EngineState] == ["starting", "preparing", "waiting", "rebuilding", "ready", "failed"]

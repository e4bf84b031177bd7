"""The states of a role's process: each may follow certain others, and no other order is possible."""

import itertools
from types import SimpleNamespace

import pytest

from streamd.daemon.child import MAY_FOLLOW, Child, ChildState

PATHS = [
    [],
    [ChildState.RUNNING],
    [ChildState.RUNNING, ChildState.REPLACED],
    [ChildState.RUNNING, ChildState.ENDED],
]
"""A way to each state."""


@pytest.mark.parametrize(("path", "state"), list(itertools.product(PATHS, ChildState)))
def test_a_state_follows_only_those_that_it_may_follow(path, state):
    child = Child("ingest")
    for step in path:
        child.transition(step)
    before = child.state
    if state in MAY_FOLLOW[before]:
        child.transition(state)
        assert child.state is state
    else:
        with pytest.raises(AssertionError, match=f"{before.name} -> {state.name}"):
            child.transition(state)
        assert child.state is before


def test_a_second_request_to_replace_a_process_asks_it_again_to_end_and_a_paused_role_is_not_asked():
    child, ends = Child("ingest"), []
    child.replace()
    assert child.state is ChildState.PAUSED

    child.start(SimpleNamespace(terminate=lambda: ends.append(1)), 5.0)
    child.replace()
    child.replace()
    assert child.state is ChildState.REPLACED and len(ends) == 2

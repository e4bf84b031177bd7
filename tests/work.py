"""Counts of work that no clock and no other process can sway: the lines of our code that run."""

import sys
from collections.abc import Callable
from types import ModuleType


def lines_run(work: Callable[[], object], *modules: ModuleType) -> int:
    """Number of lines of these modules that a call runs, each as often as it does."""
    files = {module.__file__ for module in modules}
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_filename not in files:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def lines_of_steps(steps, *modules: ModuleType) -> list[int]:
    """The same of each step of an iterator."""
    counts, more = [], True

    def step():
        nonlocal more
        more = next(steps, steps) is not steps

    while more:
        counts.append(lines_run(step, *modules))
    return counts

"""Processes of a benchmark."""

import sys
import time

import pytest

from tests.benchmarks.children import ChildDiedError, Children

ENDLESS = [sys.executable, "-c", "import time; time.sleep(1000)"]


def test_a_child_that_dies_ends_the_wait_for_it_with_its_last_words():
    begun = time.monotonic()
    with pytest.raises(ChildDiedError, match="(?s)server ended with status 3.*no space left") as error, Children() as children:
        other = children.start("other", ENDLESS)
        children.start("server", [sys.executable, "-c", "print('no space left'); raise SystemExit(3)"])
        time.sleep(60)
    assert time.monotonic() - begun < 30 and other.returncode is not None
    assert "other" not in str(error.value)


def test_a_child_that_is_ended_on_purpose_is_no_error():
    with Children() as children:
        one = children.start("one", ENDLESS)
        children.end("one")
        assert one.returncode is not None


def test_a_child_that_may_end_gives_its_output_and_one_that_fails_ends_the_wait():
    with Children() as children:
        assert children.run_to_end("rank 0", [sys.executable, "-c", "print('done')"])() == "done\n"
    with pytest.raises(ChildDiedError, match="(?s)rank 1 ended with status 1.*ValueError"), Children() as children:
        children.run_to_end("rank 0", ENDLESS)
        children.run_to_end("rank 1", [sys.executable, "-c", "raise ValueError"])()



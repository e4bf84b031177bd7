"""Facts of several edge sets: each set's own are those of a stream of that set alone."""

from pathlib import Path

import numpy as np
import pytest

from streamd.events import NodeDeletes
from streamd.graph import NUM_FACTS, PairFacts
from streamd.graph.facts.set_facts import SetFacts
from streamd.graph.live import load_stored_facts, save_facts
from streamd.schema import EdgeSet, Schema
from tests.builders import SETS, sets_stream

HALF_LIVES = (1, 5, 20, 60, 200)


def facts_of(schema=SETS, num_users=20):
    return SetFacts(schema, HALF_LIVES, 1000, 0, lambda nodes: (nodes >= num_users).astype(np.int64))


def world(seed=0):
    src, dst, time, sets = sets_stream(400, seed=seed)
    return src, dst, time, sets, np.random.default_rng(seed).integers(-1, 36, (400, 5))


def test_a_row_has_the_facts_of_its_set_then_those_of_all_then_its_set():
    src, dst, time, sets, candidates = world()
    asked = np.arange(0, 400, 3)
    got = facts_of().advance_scoring(src, dst, time, sets, asked, candidates[asked])
    everything = PairFacts(HALF_LIVES, 1000).advance_scoring(src, dst, time, asked, candidates[asked])
    np.testing.assert_array_equal(got[..., NUM_FACTS:2 * NUM_FACTS], everything)
    np.testing.assert_array_equal(got[:, 0, 2 * NUM_FACTS:], np.eye(3)[sets[asked]])
    for number in range(3):
        own = np.flatnonzero(sets == number)
        rows = np.flatnonzero(sets[asked] == number)
        alone = PairFacts(HALF_LIVES, 1000).advance_scoring(
            src[own], dst[own], time[own], np.searchsorted(own, asked[rows]), candidates[asked[rows]])
        np.testing.assert_array_equal(got[rows, :, :NUM_FACTS], alone)


def test_however_the_log_is_cut_and_restored_the_facts_are_the_same(tmp_path):
    src, dst, time, sets, candidates = world(1)
    deletes = NodeDeletes(np.array([3, 22]), np.array([130, 131]))
    for ends in (src, dst):  # nobody names a deleted node any more
        ends[130:][ends[130:] == 3] = 4
        ends[131:][ends[131:] == 22] = 23
    whole, cut = facts_of(), facts_of()
    whole.advance(src, dst, time, sets, deletes)
    at = 0
    for step in (1, 129, 2, 100):
        part = slice(at, at + step)
        cut.advance(src[part], dst[part], time[part], sets[part], deletes)
        at += step
    cut.save(tmp_path / "00000000000000000232.safetensors")
    again = facts_of()
    assert again.restore(tmp_path / "00000000000000000232.safetensors") and again.edge == 232
    again.advance(src[at:], dst[at:], time[at:], sets[at:], deletes)
    asked = np.arange(35), np.full(35, int(time[-1]) + 5), np.tile(np.arange(35), (35, 1)), np.arange(35) % 3
    np.testing.assert_array_equal(whole.compute(*asked), again.compute(*asked))
    for node_set in (0, 1):
        want = whole.destinations_in(node_set).destination_order.tolist()
        assert again.destinations_in(node_set).destination_order.tolist() == want and all((n >= 20) == node_set for n in want)


def test_deletes_from_before_a_restart_lie_before_all_that_comes_after_it(tmp_path):
    """They are given again with the first events after it, few or many; a new delete among those has its own place."""
    src, dst, time, sets, candidates = world(6)
    deletes = NodeDeletes(np.array([3, 22, 4]), np.array([130, 131, 250]))
    for node, at, instead in zip((3, 22, 4), (130, 131, 250), (5, 23, 5), strict=True):
        for ends in (src, dst):
            ends[at:][ends[at:] == node] = instead
    whole = facts_of()
    whole.advance(src[:232], dst[:232], time[:232], sets[:232], deletes)
    whole.save(tmp_path / "00000000000000000232.safetensors")
    asked = np.arange(400 - 232)
    want = whole.advance_scoring(src[232:], dst[232:], time[232:], sets[232:], asked, candidates[232:], deletes)
    for step in (7, 40, 400 - 232):
        again = facts_of()
        assert again.restore(tmp_path / "00000000000000000232.safetensors")
        again.advance(src[232:232 + step], dst[232:232 + step], time[232:232 + step], sets[232:232 + step], deletes)
        at = 232 + step
        again.advance(src[at:], dst[at:], time[at:], sets[at:], deletes)
        every = np.arange(35), np.full(35, int(time[-1]) + 5), np.tile(np.arange(35), (35, 1)), np.arange(35) % 3
        np.testing.assert_array_equal(whole.compute(*every), again.compute(*every))
    again = facts_of()
    again.restore(tmp_path / "00000000000000000232.safetensors")
    got = again.advance_scoring(src[232:], dst[232:], time[232:], sets[232:], asked, candidates[232:], deletes)
    np.testing.assert_array_equal(got, want)


def test_a_deleted_node_is_forgotten_in_every_set_at_its_place():
    src, dst, time, sets, _ = world(2)
    node = int(src[0])
    facts = facts_of()
    facts.advance(src, dst, time, sets, NodeDeletes(np.array([node]), np.array([400])))
    facts.advance(src[:0], dst[:0], time[:0], sets[:0], NodeDeletes(np.array([node]), np.array([400])))
    assert all(not one.is_known(np.array([node]))[0] for one in (facts.all, *facts.per_set))


def test_a_source_is_one_in_the_sets_of_its_events_until_it_is_deleted():
    r"""Node 0 goes to 1 in the first set, 1 to 2 in the second."""
    facts = facts_of()
    facts.advance(np.array([0, 1]), np.array([1, 2]), np.array([5, 6]), np.array([0, 1]))
    ids = np.array([-1, 0, 1, 2, 99])
    assert facts.of_set(0).is_source(ids).tolist() == [False, True, False, False, False]
    assert facts.of_set(1).is_source(ids).tolist() == [False, False, True, False, False]
    none = np.zeros(0, np.int64)
    facts.advance(none, none, none, none, NodeDeletes(np.array([0]), np.array([2])))
    assert not facts.of_set(0).is_source(ids).any() and facts.of_set(1).is_source(ids)[2]


def test_a_log_of_one_set_has_the_facts_it_always_had():
    src, dst, time, _, candidates = world(3)
    facts = facts_of(Schema())
    got = facts.advance_scoring(src, dst, time, np.zeros(400, np.int64), np.arange(400), candidates)
    assert not facts.per_set and facts.destinations_in(0) is facts.all
    np.testing.assert_array_equal(got, PairFacts(HALF_LIVES, 1000).advance_scoring(src, dst, time, np.arange(400), candidates))


def test_what_is_asked_about_no_set_has_the_facts_of_all_only():
    src, dst, time, sets, _ = world(4)
    facts = facts_of(Schema.declared((), [EdgeSet(name) for name in "abc"]))
    facts.advance(src, dst, time, sets)
    row = facts.compute(np.array([2]), np.array([int(time[-1]) + 1]), np.array([[2]]), np.array([-1]))[0, 0]
    assert not row[:NUM_FACTS].any() and not row[2 * NUM_FACTS:].any() and row[NUM_FACTS:2 * NUM_FACTS].any()


@pytest.mark.parametrize("kill_at", range(1, 5))
def test_facts_that_a_kill_left_beside_newer_ones_go_with_the_next_store(tmp_path, monkeypatch, kill_at):
    """Killed at each removal of the older facts, the file of all sets and one each; then the role stores again."""
    src, dst, time, sets, _ = world(5)
    facts = facts_of()
    unlink, removed = Path.unlink, []

    def killed(path, **_):
        removed.append(path)
        if len(removed) == kill_at:
            raise KeyboardInterrupt
        unlink(path)

    for turn, part in enumerate(np.array_split(np.arange(400), 3)):
        facts.advance(src[part], dst[part], time[part], sets[part])
        if turn == 1:
            monkeypatch.setattr(Path, "unlink", killed)
            with pytest.raises(KeyboardInterrupt):
                save_facts(facts, tmp_path)
            monkeypatch.undo()
            again = facts_of()
            assert load_stored_facts(again, tmp_path, 400) and again.edge == facts.edge
            assert removed[0].stem.isdigit(), "what stands for the whole goes first"
            (tmp_path / "notes-1.safetensors").touch()
        else:
            save_facts(facts, tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [*(f"{400:020d}{part}.safetensors" for part in ("-0", "-1", "-2", "")), "notes-1.safetensors"]

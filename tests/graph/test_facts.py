import numpy as np
import pytest

from streamd.events import NodeDeletes as Deletes
from streamd.graph import NUM_FACTS, FactColumn, PairFacts
from streamd.graph.live import save_facts
from streamd.tensors import write_arrays
from tests.graph.reference_facts import ReferenceFacts

HALF_LIVES = (1, 5, 20, 60, 200)
COVISITS = {"covisits", "visited", "num_sources"}


def tied_stream(seed, n=250, nodes=12, second=1_000_000):
    rng = np.random.default_rng(seed)
    return (rng.integers(0, nodes, n), rng.integers(0, nodes, n), np.sort(rng.integers(0, n // 2, n)) * second,
            rng.integers(-1, nodes + 2, (n, 5)))


def by_reference(src, dst, time, candidates, max_pairs, half_lives=HALF_LIVES):
    """Rows of every event from strictly before it, plainly."""
    facts = ReferenceFacts(half_lives, max_pairs)
    out = np.zeros((*candidates.shape, NUM_FACTS))
    for t in np.unique(time):
        now = np.flatnonzero(time == t)
        for i in now:
            out[i] = [facts.row(int(src[i]), int(c), int(t)) for c in candidates[i]]
        for i in now:
            facts.update(int(src[i]), int(dst[i]), int(t))
    return out, facts


@pytest.mark.parametrize("max_pairs", [1000, 20])
@pytest.mark.parametrize(("seed", "minutes"), [(0, 0), (1, 0), (2, 47)])
def test_facts_equal_the_reference_with_ties_self_loops_and_forgotten_pairs(seed, minutes, max_pairs):
    seconds = minutes * 60 or 1
    src, dst, time, candidates = tied_stream(seed, second=seconds * 1_000_000)
    half_lives = [h * seconds for h in HALF_LIVES]
    want, reference = by_reference(src, dst, time, candidates, max_pairs, half_lives)
    facts = PairFacts(half_lives, max_pairs)
    got = facts.advance_scoring(src, dst, time, np.arange(len(src)), candidates)
    np.testing.assert_allclose(got, want, atol=2e-4)
    assert facts.num_pairs == len(reference.meetings) <= max_pairs
    later = int(time[-1]) + 7_000_000
    asked = np.array([[0, 5, 11, -1, 400]])
    np.testing.assert_allclose(facts.compute(np.array([3]), np.array([later]), asked)[0],
                               [reference.row(3, int(c), later) for c in asked[0]], atol=2e-4)


def test_the_state_does_not_depend_on_how_the_log_is_cut():
    src, dst, time, _ = tied_stream(2, 600, 40)
    whole, cut = PairFacts(HALF_LIVES, 100), PairFacts(HALF_LIVES, 100)
    whole.advance(src, dst, time)
    at = 0
    for step in [1, 7, 200, 600]:
        cut.advance(src[at:at + step], dst[at:at + step], time[at:at + step])
        at += step
    sources, when = np.arange(40), np.full(40, time[-1] + 1)
    everyone = np.tile(np.arange(40), (40, 1))
    np.testing.assert_array_equal(whole.compute(sources, when, everyone), cut.compute(sources, when, everyone))


def test_rows_of_some_events_are_those_of_all(seed=4):
    src, dst, time, candidates = tied_stream(seed)
    want = PairFacts(HALF_LIVES, 1000).advance_scoring(src, dst, time, np.arange(len(src)), candidates)
    asked = np.array([3, 4, 100, 249])
    got = PairFacts(HALF_LIVES, 1000).advance_scoring(src, dst, time, asked, candidates[asked])
    np.testing.assert_array_equal(got, want[asked])


@pytest.mark.parametrize("node", [1023, 1024, 5000])
def test_there_is_room_for_every_node(node):
    facts = PairFacts(HALF_LIVES, 10)
    facts.advance(np.array([0]), np.array([node]), np.array([1]))
    assert facts.is_known(np.array([node, node + 1])).tolist() == [True, False] and facts.destination_order.tolist() == [node]


def test_asking_changes_nothing():
    src, dst, time, candidates = tied_stream(3)
    facts = PairFacts(HALF_LIVES, 1000)
    facts.advance(src[:100], dst[:100], time[:100])
    before = facts.compute(src, time, candidates)
    np.testing.assert_array_equal(before, facts.compute(src, time, candidates))
    facts.advance(src[100:], dst[100:], time[100:])
    assert not np.array_equal(before, facts.compute(src, time, candidates))


def test_what_is_known_of_nodes():
    facts = PairFacts(HALF_LIVES, 10)
    facts.advance(np.array([0, 0, 2, 4]), np.array([1, 4, 4, 0]), np.array([1, 2, 3, 4]))
    assert facts.destinations().tolist() == [0, 1, 4] and facts.destination_order.tolist() == [1, 4, 0]
    assert facts.ranks_of(np.array([4, 1, 0, 2, 99, -1])).tolist() == [1, 0, 2, -1, -1, -1]
    assert facts.partners(0).tolist() == [1, 4] and facts.partners(99).tolist() == []
    assert facts.is_known(np.array([-1, 0, 3, 4, 10**6])).tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("max_pairs", [1000, 25])
@pytest.mark.parametrize("cuts", [(), (60, 61, 130, 180)])
def test_a_deleted_node_is_forgotten_at_its_place_however_the_log_is_cut(max_pairs, cuts):
    src, dst, time, candidates = tied_stream(5, second=600_000_000)
    deletes = Deletes(np.array([3, 7, 3, 11, 99]), np.array([60, 130, 131, 131, 250]))
    for node, at in zip(deletes.node[:4], deletes.edge[:4], strict=True):
        src[at:] = np.where(src[at:] == node, (node + 1) % 12, src[at:])
        dst[at:] = np.where(dst[at:] == node, (node + 2) % 12, dst[at:])
        src[at:] = np.where(np.isin(src[at:], deletes.node), 0, src[at:])
        dst[at:] = np.where(np.isin(dst[at:], deletes.node), 1, dst[at:])
    half_lives = [600 * h for h in HALF_LIVES]
    reference, want = ReferenceFacts(half_lives, max_pairs), np.zeros((len(src), 5, NUM_FACTS))
    for i in range(len(src)):
        first = int(np.searchsorted(time, time[i]))
        if i == first:
            if i in deletes.edge:
                reference.forget(set(deletes.node[deletes.edge == i].tolist()))
            for j in np.flatnonzero(time == time[i]):
                want[j] = [reference.row(int(src[j]), int(c), int(time[j])) for c in candidates[j]]
        elif i in deletes.edge:
            reference.forget(set(deletes.node[deletes.edge == i].tolist()))
        reference.update(int(src[i]), int(dst[i]), int(time[i]))
    facts, got = PairFacts(half_lives, max_pairs), []
    starts = [int(np.searchsorted(time, time[c])) for c in cuts]
    for a, b in zip([0, *starts], [*starts, len(src)], strict=True):
        got.append(facts.advance_scoring(src[a:b], dst[a:b], time[a:b], np.arange(b - a), candidates[a:b], deletes))
    np.testing.assert_allclose(np.concatenate(got), want, atol=2e-4)
    assert facts.num_pairs == len(reference.meetings) and facts.destination_order.tolist() == reference.destination_order
    assert not facts.is_known(np.array([3, 7, 11])).any() and not set(facts.destinations()) & {3, 7, 11}


def test_facts_stored_by_a_release_that_knew_fewer_are_taken_over_and_the_new_ones_begin_anew(tmp_path):
    src, dst, time, candidates = tied_stream(8)
    facts = PairFacts(HALF_LIVES, 1000)
    facts.advance(src[:200], dst[:200], time[:200])
    newer = {"log_gap", "repeats", "num_partners", "step_key", "step_count", "step_at", "num_met", "hours"} | COVISITS
    write_arrays(tmp_path / "old", {name: t for name, t in facts.tensors().items() if name not in newer})
    taken = PairFacts(HALF_LIVES, 1000)
    assert taken.restore(tmp_path / "old") and taken.edge == 200
    when = time[:200] * 0 + int(time[-1])
    want, got = (f.compute(src[:200], when, candidates[:200]) for f in (facts, taken))
    known = [c for c in FactColumn if c < 24 or c in (FactColumn.LOG_SOURCE_PARTNERS, FactColumn.LOG_CANDIDATE_PARTNERS)]
    np.testing.assert_array_equal(got[..., known], want[..., known])
    assert not got[..., FactColumn.SOURCE_REPEATS].any() and want[..., FactColumn.SOURCE_REPEATS].any()
    assert (got[..., FactColumn.LOG_EVENTS_SINCE_TRANSITION] == 12).all()
    share, rare = got[..., FactColumn.LOG_PAIR_SHARE], want[..., FactColumn.MET] == 0
    np.testing.assert_allclose(share, want[..., FactColumn.LOG_PAIR_SHARE], atol=0.2)
    np.testing.assert_array_equal(share[rare], want[..., FactColumn.LOG_PAIR_SHARE][rare])


def test_facts_of_a_release_without_covisits_count_them_from_there_on(tmp_path):
    src, dst, time, candidates = tied_stream(8)
    whole, later = PairFacts(HALF_LIVES, 1000), ReferenceFacts(HALF_LIVES, 1000)
    whole.advance(src[:150], dst[:150], time[:150])
    write_arrays(tmp_path / "old", {name: t for name, t in whole.tensors().items() if name not in COVISITS})
    taken = PairFacts(HALF_LIVES, 1000)
    assert taken.restore(tmp_path / "old")
    np.testing.assert_array_equal(taken.tensors()["num_sources"], whole.tensors()["num_sources"])

    # The reference forgets its co-visits and last destinations there.
    for i in range(len(src)):
        if i == 150:
            later.covisits.clear()
            later.visited.clear()
        later.update(int(src[i]), int(dst[i]), int(time[i]))
    taken.advance(src[150:], dst[150:], time[150:])
    now = int(time[-1]) + 1
    want = [[later.row(u, int(c), now) for c in candidates[u]] for u in range(12)]
    got = taken.compute(np.arange(12), np.full(12, now), candidates[:12])
    np.testing.assert_allclose(got, want, atol=2e-4)
    assert got[..., FactColumn.LOG_GREATEST_COVISITS].any()


def test_covisits_say_who_went_to_both():
    facts = PairFacts(HALF_LIVES, 1000)
    # Sources 0, 1 and 2 go to 10 and then to 11, the last of them twice; source 3 has been to 10 alone.
    src, dst = np.array([0, 1, 2, 0, 1, 2, 2, 3]), np.array([10, 10, 10, 11, 11, 11, 11, 10])
    facts.advance(src, dst, np.arange(8) * 1_000_000)
    asked = np.array([[10, 11, 12, 3, 99]])
    total, greatest = (facts.compute(np.array([3]), np.array([9_000_000]), asked)[0, :, column]
                       for column in (FactColumn.LOG_COVISITS, FactColumn.LOG_GREATEST_COVISITS))
    assert np.expm1(greatest) / 100 == pytest.approx([0, 3 / np.sqrt(4 * 3), 0, 0, 0])
    np.testing.assert_array_equal(total, greatest)

    # Of two last destinations that others went to with 11, both count.
    facts.advance(np.array([4, 4, 3]), np.array([13, 11, 13]), np.array([10, 11, 12]) * 1_000_000)
    row = facts.compute(np.array([3]), np.array([13_000_000]), np.array([[11]]))[0, 0]
    shares = 3 / np.sqrt(4 * 4), 1 / np.sqrt(2 * 4)
    assert np.expm1(row[FactColumn.LOG_COVISITS]) / 100 == pytest.approx(sum(shares), rel=1e-5)
    assert np.expm1(row[FactColumn.LOG_GREATEST_COVISITS]) / 100 == pytest.approx(max(shares), rel=1e-5)


def test_habits_and_transitions_say_what_they_are_called():
    facts = PairFacts(HALF_LIVES, 1000)
    # Source 0 stays with 10, source 1 goes on from 10 to 11 each time, a second after the other.
    src, dst = np.array([0, 0, 0, 1, 1, 1, 1]), np.array([10, 10, 10, 10, 11, 10, 11])
    facts.advance(src, dst, np.arange(7) * 1_000_000)
    stays, goes = (facts.compute(np.array([u]), np.array([9_000_000]), np.array([[10, 11, 12]]))[0] for u in (0, 1))
    assert stays[0, FactColumn.SOURCE_REPEATS] == pytest.approx(1 - 0.8**2) and goes[0, FactColumn.SOURCE_REPEATS] == 0
    assert np.expm1(goes[0, FactColumn.LOG_SOURCE_PARTNERS]) == pytest.approx(2)
    assert np.expm1(goes[:, FactColumn.LOG_CANDIDATE_PARTNERS]) == pytest.approx([2, 1, 0])
    assert stays[0, FactColumn.LOG_SOURCE_GAP] == pytest.approx(0) and goes[2, FactColumn.LOG_CANDIDATE_GAP] == 20
    share = stays[:, FactColumn.LOG_TRANSITION_SHARE]
    assert share == pytest.approx(np.log((np.array([2, 2, 0]) + 0.02) / (5 + 20)))
    assert np.expm1(stays[:2, FactColumn.LOG_EVENTS_SINCE_TRANSITION]) == pytest.approx([3, 0])
    assert np.expm1(goes[0, FactColumn.LOG_CANDIDATE_EVENTS_SINCE_MET]) == pytest.approx(0)


def test_hours_of_the_day_tell_a_morning_commute_from_an_evening_one():
    facts, day, hour = PairFacts(HALF_LIVES, 1000), 86_400_000_000, 3_600_000_000
    # Every day 0 -> 1 at 08:30 and back at 18:30.
    times = np.array([d * day + h * hour + hour // 2 for d in range(10) for h in (8, 18)])
    facts.advance(np.array([0, 1] * 10), np.array([1, 0] * 10), times)
    at = np.array([10 * day + h * hour for h in (9, 7, 10, 18)])
    rows = facts.compute(np.zeros(4, np.int64), at, np.tile([1, 2], (4, 1)))
    morning = np.log((10 + 0.5) / (20 + 8))
    assert rows[:, 0, FactColumn.LOG_PAIR_HOUR_SHARE] == pytest.approx([morning, morning, np.log(0.5 / 28), np.log(0.5 / 28)])
    np.testing.assert_array_equal(rows[:, 0, FactColumn.LOG_PAIR_HOUR_SHARE], rows[:, 0, FactColumn.LOG_CANDIDATE_HOUR_SHARE])
    assert rows[:, 0, FactColumn.LOG_PAIR_SHARE] == pytest.approx(np.log((20 + 0.02) / (20 + 5)))
    assert rows[:, 1, FactColumn.LOG_PAIR_HOUR_SHARE] == pytest.approx(np.log(0.5 / 8)), "nobody knows"


def test_stored_facts_go_on_as_if_they_had_never_stopped(tmp_path):
    src, dst, time, candidates = tied_stream(6)
    facts, at = PairFacts(HALF_LIVES, 25), 120
    dst[at - 2], highest = 15, Deletes(np.array([15]), np.array([at - 1]))
    facts.advance(src[:at], dst[:at], time[:at], highest)
    assert 15 in facts.destination_order
    save_facts(facts, tmp_path)
    stored, = tmp_path.iterdir()
    twin = PairFacts(HALF_LIVES, 25)
    assert twin.restore(stored) and twin.edge == at
    for f in (facts, twin):
        f.advance(src[at:], dst[at:], time[at:], Deletes(np.array([15, 5]), np.array([at - 1, 130])))
    np.testing.assert_array_equal(facts.compute(src, time, candidates), twin.compute(src, time, candidates))
    np.testing.assert_array_equal(facts.destination_order, twin.destination_order)
    assert not PairFacts((1, 2, 3, 4, 5), 25).restore(stored), "other half-lives, other facts"
    few = PairFacts(HALF_LIVES, 10)
    assert not few.restore(stored) and few.edge == 0, "more pairs than it keeps"


@pytest.mark.parametrize("change", [
    lambda a: a.pop("ring"), lambda a: a.update(seen=a["seen"].astype(np.int32)), lambda a: a.update(sent=a["sent"][:, 0]),
    lambda a: a.update(hours=a["hours"][:1000]), lambda a: a.pop("step_at"), lambda a: a.update(covisits=a["covisits"][:1000]),
    lambda a: a.pop("visited")])
def test_a_file_with_other_arrays_than_facts_have_is_refused(tmp_path, change):
    src, dst, time, _ = tied_stream(6)
    facts = PairFacts(HALF_LIVES, 25)
    facts.advance(src, dst, time)
    arrays = {name: np.ascontiguousarray(a) for name, a in facts.tensors().items()}
    change(arrays)
    write_arrays(tmp_path / "facts", {name: np.ascontiguousarray(a) for name, a in arrays.items()})
    twin = PairFacts(HALF_LIVES, 25)
    with pytest.raises(ValueError, match="arrays are missing, or have another type or shape"):
        twin.restore(tmp_path / "facts")
    assert twin.edge == twin.num_nodes == 0


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_few_pairs_are_found_again_after_a_restart(tmp_path, count):
    facts, asked = PairFacts(HALF_LIVES, 1), (np.array([3]), np.array([9_000_000]), np.array([[4, 5]]))
    facts.advance(np.array([3, 3])[:count], np.array([5, 4])[:count], np.array([1_000_000, 2_000_000])[:count])
    save_facts(facts, tmp_path)
    (stored,) = tmp_path.iterdir()
    twin = PairFacts(HALF_LIVES, 1)
    assert twin.restore(stored)
    np.testing.assert_array_equal(twin.compute(*asked), facts.compute(*asked))


def test_the_table_of_nodes_grows_past_what_was_restored(tmp_path):
    """Rows that come later begin as those of nodes never seen, wherever the stored rows end."""
    facts, twin = PairFacts(HALF_LIVES, 100), PairFacts(HALF_LIVES, 100)
    facts.advance(np.array([0]), np.array([70]), np.array([1]))
    save_facts(facts, tmp_path)
    stored, = tmp_path.iterdir()
    assert twin.restore(stored) and twin.num_nodes == 71
    for f in (facts, twin):
        f.advance(np.array([99]), np.array([40_000]), np.array([5]))
    asked = np.array([0, 70, 71, 98, 99, 16_384, 40_000, 40_001])
    rows = [f.compute(asked, np.full(8, 9), np.tile(asked, (8, 1))) for f in (facts, twin)]
    np.testing.assert_array_equal(*rows)
    assert facts.destinations().tolist() == twin.destinations().tolist() == [70, 40_000]

import contextlib
import itertools
import json
import multiprocessing
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from filelock import FileLock
from structlog.testing import capture_logs

from streamd.errors import UntakenError, VersionError
from streamd.eventlog.delivery import Wait
from streamd.eventlog.writer import LogWriter
from streamd.events import Schema
from streamd.registry import Registry
from streamd.registry.candidate import Candidate, TrainResult
from streamd.registry.gate import decide, is_below_rule
from streamd.registry.journal import ModelJournal, decoded_moves
from streamd.registry.locks import MOVES
from streamd.registry.registry import memory_names, promote_again, read_manifests
from streamd.settings.loading import ModelSettings, TrainingSettings
from streamd.storage import TAIL_BYTES, ImmutableFile
from streamd.tensors import file_checksum
from streamd.windows import Window
from tests.builders import settings, stream, write_log

MADE = tempfile.TemporaryDirectory()


def memory():
    """Two files that versions link to; what they hold does not matter to the registry."""
    out = []
    for name in ("messages", "rows"):
        path = Path(MADE.name) / name
        path.write_bytes(name.encode())
        out.append(ImmutableFile(path, file_checksum(path)))
    return tuple(out)


def candidate(n, learned=None):
    return Candidate(window=Window(n, n + 10, 0, n), edge=n, seq=1, weights={"w": np.full(2, n, np.float32)}, memory=memory,
                     memory_us=5, parent="", facts=("met",), schema=Schema(), scores={"live": {"mrr": 0.5}}, learned=learned or learned_as(),
                     model=ModelSettings(), training=TrainingSettings(), window_seconds=3600)


def learned_as(finite=True, after=0.6, rule=float("nan")):
    return TrainResult(loss=0.1, finite=finite, tail_before=0.5, tail_after=after, num_tail=20, tail_rule=rule)


@pytest.fixture
def registry(tmp_path):
    return Registry.of(settings(tmp_path, registry__keep=3))


def test_a_version_is_read_back_as_published(registry):
    outcome = registry.publish(candidate(7))
    assert outcome.promoted and registry.champion() == outcome.version == "17-7"
    version = registry.load("17-7")
    assert version.weights["w"].tolist() == [7.0, 7.0] and version.manifest.scores == {"live": {"mrr": 0.5}}
    assert version.manifest.facts == ("met",)
    assert json.loads((registry.folder / "aliases.json").read_text()) == {"champion": "17-7", "shadow": "17-7"}


def test_old_versions_go_but_never_champion_or_shadow(registry):
    first = registry.publish(candidate(1)).version
    second = registry.publish(candidate(2)).version
    registry.rollback("me", "because")
    assert registry.champion() == first
    registry.prove(second, "as good")
    for n in range(3, 9):
        registry.publish(candidate(n), incumbent=first)
    assert registry.names() == [first, second, "16-6", "17-7", "18-8"]
    assert [m.name for m in read_manifests(registry)] == registry.names()


def test_what_serves_is_the_newest_move_unless_other_machines_have_to_know_of_it(tmp_path):
    alone = Registry.of(settings(tmp_path))
    many = Registry.of(settings(tmp_path, log__name="t", log__store="file:///unused"))
    first = alone.publish(candidate(1)).version
    assert many.shown().champion == first, "as before an update, where nothing was ever shown"
    many.journal.show(many.shown())
    second = many.publish(candidate(2)).version
    assert (many.champion(), many.shown().champion, alone.shown().champion) == (second, first, second)
    many.journal.show(many.journal.last())
    assert many.shown().champion == second
    (many.folder / "shown.json").write_bytes(b"{torn\n")
    assert many.shown() is None and many.journal.passed_over, "the rule answers, and the trainer writes it again"


def with_memory(registry):
    return [m.name for m in read_manifests(registry) if all((registry.folder / m.name / name).exists() for name in memory_names(m))]


def test_champion_shadow_and_the_newest_version_with_its_parent_keep_their_memory(registry):
    first = registry.publish(candidate(1)).version
    for n in range(2, 6):
        registry.publish(replace(candidate(n), parent=f"{n + 9}-{n - 1}"), incumbent=first)
    registry.prune()
    assert registry.names() == [first, "13-3", "14-4", "15-5"]
    assert with_memory(registry) == [first, "14-4", "15-5"]


def test_a_drop_of_memory_that_was_killed_is_finished_and_nothing_is_removed_twice(registry, monkeypatch):
    first = registry.publish(candidate(1)).version
    for n in range(2, 5):
        registry.publish(candidate(n), incumbent=first)
    dropped = registry.manifest("12-2")
    files = [registry.folder / "12-2" / name for name in memory_names(dropped)]
    assert len(files) > 1 and not any(file.exists() for file in files)
    files[-1].touch()
    removed = []
    monkeypatch.setattr(registry, "_disk", SimpleNamespace(unlink=lambda path: (removed.append(path), path.unlink(missing_ok=True))))
    registry.prune()
    registry.prune()
    assert removed == files and not files[-1].exists()


def test_another_machine_keeps_the_memory_of_the_versions_that_the_trainer_keeps_it_of(registry):
    first, second = (registry.publish(candidate(n)).version for n in (1, 2))
    third = registry.publish(replace(candidate(3), parent=second)).version
    assert registry.journal.last().champion == third and registry.journal.last().shadow == first
    for kept, servable in ((True, [first, second, third]), (False, [first, third])):
        registry.keep({first: False, second: kept, third: False})
        assert registry.names() == [first, second, third] and with_memory(registry) == servable, "those named keep it always"


def test_moves_are_decoded_without_a_torn_line_and_without_lines_that_are_none(registry):
    registry.publish(candidate(1))
    registry.publish(candidate(2))
    whole = (registry.folder / "journal.jsonl").read_bytes()
    first, second = registry.journal.moves()
    torn = whole.splitlines(keepends=True)[1][:-1]
    assert decoded_moves(b"\n{}\nno json\n" + whole) == [first, second]
    assert decoded_moves(whole.splitlines(keepends=True)[0] + torn) == [first]


def test_a_half_written_version_is_invisible(registry):
    registry.publish(candidate(1))
    (registry.folder / ".99-9.tmp").mkdir()
    (registry.folder / "98-8").mkdir()
    assert registry.names() == ["11-1"]
    with pytest.raises(VersionError, match="98-8"):
        registry.load("98-8")


@pytest.mark.parametrize("name", ["nope", "..", "../x", ".hidden", "a/b", ""])
def test_a_name_that_is_no_version_is_refused(registry, name):
    with pytest.raises(VersionError):
        registry.promote(name, "me", "")


def test_rolling_back_needs_a_version_to_go_back_to(registry):
    with pytest.raises(VersionError):
        registry.rollback("me", "")
    registry.publish(candidate(1))
    with pytest.raises(VersionError):
        registry.rollback("me", "")


def test_a_version_serves_only_while_the_log_holds_its_position(registry, tmp_path):
    src, dst, time = stream(20)
    write_log(tmp_path, src, dst, time, Schema(), segment_edges=5)
    for edge in (0, 20):
        registry.promote(registry.publish(candidate(edge)).version, "me", "")
    with pytest.raises(VersionError, match="is at edge 21"):
        registry.promote(registry.publish(candidate(21)).version, "me", "")
    writer = LogWriter(tmp_path, Schema())
    writer.drop_before(10)
    writer.close()
    with pytest.raises(VersionError, match=r"is at edge 9, the log holds \[10"):
        registry.promote(registry.publish(candidate(9)).version, "me", "")


def test_only_moves_by_others_count_as_by_hand(registry):
    registry.publish(candidate(1))
    registry.publish(candidate(2))
    assert registry.moved_by_hand() is None
    registry.promote("11-1", "operator", "")
    assert registry.moved_by_hand() == "11-1"


@pytest.mark.parametrize(("finite", "before", "after", "num", "promoted"), [
    (True, 0.8, 0.85, 20, True), (True, 0.8, 0.7, 20, True), (True, 0.8, 0.1, 20, False), (False, 0.8, 0.9, 20, False),
    (True, 0.8, 0.0, 3, True), (True, 0.8, 0.0, 4, True), (True, 0.8, 0.0, 5, False), (True, float("nan"), float("nan"), 0, True), (True, 0.8, 0.5, 2000, False)])
def test_the_gate_refuses_what_is_not_finite_or_collapsed(finite, before, after, num, promoted):
    decision = decide(finite, before, after, num)
    assert decision.promote is promoted and decision.reason


@pytest.mark.parametrize(("num", "says"), [(1, "a tail of 1 event is"), (2, "a tail of 2 events is")])
def test_the_gate_counts_the_events_that_are_too_few(num, says):
    assert says in decide(finite=True, tail_before=0.5, tail_after=0.1, num_tail=num).reason


@pytest.mark.parametrize(("after", "rule", "num", "below"), [
    (0.5, 0.9, 20, True), (0.7, 0.9, 20, False), (0.7, 0.9, 100, True), (0.5, 0.9, 4, False), (0.5, 0.4, 2000, False),
    (0.5, float("nan"), 2000, False), (float("nan"), 0.9, 20, False)])
def test_a_version_is_below_the_rule_where_chance_does_not_explain_it(after, rule, num, below):
    assert is_below_rule(after, rule, num) is below


def test_the_rule_serves_until_a_version_is_not_below_it_and_then_versions_do(registry):
    below = registry.publish(candidate(1, learned_as(after=0.3, rule=0.9)))
    assert not below.promoted and not below.refused and registry.champion() is None and below.version == "11-1"
    assert "the rule, which answers on: the best rule has 0.900 there" in below.reason and registry.is_servable(registry.manifest("11-1"))
    again = registry.publish(candidate(1, learned_as(after=0.3, rule=0.9)))
    assert again == below, "as after a stop before the checkpoint"
    above = registry.publish(candidate(2, learned_as(after=0.8, rule=0.9)))
    assert above.promoted and registry.champion() == above.version
    later = registry.publish(candidate(3, learned_as(after=0.4, rule=0.9)))
    assert later.promoted, "the version before it would be no better than the rule either"


def test_a_version_whose_labels_no_rule_can_answer_serves_below_the_rule(registry):
    labelled = replace(candidate(1, learned_as(after=0.3, rule=0.9)), model=ModelSettings(labels="regression"))
    assert registry.publish(labelled).promoted


def test_a_version_below_the_rule_may_be_promoted_by_hand(registry):
    name = registry.publish(candidate(1, learned_as(after=0.3, rule=0.9))).version
    registry.promote(name, "operator", "its embeddings are needed")
    assert registry.champion() == name and registry.publish(candidate(2, learned_as(after=0.3, rule=0.9))).promoted


def test_what_is_learned_beside_a_champion_is_kept_and_does_not_serve(registry):
    serving = registry.publish(candidate(1)).version
    outcome = registry.publish(candidate(2), incumbent=serving)
    assert not outcome.promoted and not outcome.refused and registry.champion() == serving
    assert registry.names() == [serving, outcome.version]


def test_a_refused_candidate_is_not_written(registry):
    registry.publish(candidate(1))
    outcome = registry.publish(candidate(2, learned_as(False, 0.5)))
    assert not outcome.promoted and registry.names() == ["11-1"] and registry.champion() == "11-1"


def _move_many(folder, who):
    journal = ModelJournal(folder)
    for i in range(20):
        journal.move("promote", f"{who}-{i}", who, "")


def test_moves_of_several_processes_form_one_chain(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_move_many, args=(tmp_path, f"p{n}")) for n in range(3)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    moves = ModelJournal(tmp_path).moves()
    assert len(moves) == 60
    assert {m.shadow for m in moves} == {moves[0].champion}, "nothing was proven since"
    assert len({m.champion for m in moves}) == 60


def test_versions_from_before_a_delete_go_with_a_line_in_the_log(registry):
    first, second, third = (registry.publish(candidate(n)).version for n in (1, 2, 3))
    with capture_logs() as lines:
        registry.drop_before(0)
        assert registry.names() == [first, second, third] and not lines, "none is that old"
        registry.drop_before(10**6)
    assert registry.names() == [first, third], "shadow and champion"
    assert [line["versions"] for line in lines if line["event"] == "versions_dropped"] == [[second]]


OPERATIONS = {
    "rollback": lambda r: r.rollback("operator", ""),
    "prove": lambda r: r.prove("13-3", "as good"),
    "drop_before": lambda r: r.drop_before(1),
    "prune": lambda r: r.prune(),
    "promote_again": lambda r: promote_again(r, "newer moves elsewhere"),
}
RIVALS = {
    "promote": lambda r: r.promote("12-2", "operator", ""),
    "prove": lambda r: (r.prove("13-3", "as good"), r.prune()),
    "rollback": lambda r: r.rollback("operator", ""),
    "drop_before": lambda r: r.drop_before(1),
}


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_champion_and_shadow_are_there_whatever_another_process_does_between_two_reads(tmp_path, monkeypatch, operation, rival):
    """The rival acts after each read of the operation in turn; if it has to wait for the lock, after the operation."""
    for point in range(10):
        path = tmp_path / str(point)
        ours, other = (Registry.of(settings(path, registry__keep=2)) for _ in range(2))
        for n in (1, 2, 3):
            ours.publish(replace(candidate(n), parent="12-2" if n == 3 else ""))
        other.journal.wait = Wait(0)
        other.journal.file_lock = FileLock(ours.folder / MOVES, timeout=0)
        waits, reads = [], itertools.count()

        def act(other=other):
            with contextlib.suppress(VersionError):
                RIVALS[rival](other)

        def after_read(read, point=point, reads=reads, waits=waits, act=act):
            def hooked(*args):
                out = read(*args)
                if next(reads) == point:
                    try:
                        act()
                    except UntakenError:
                        waits.append(act)
                return out
            return hooked

        ours.journal.last = after_read(ours.journal.last)
        ours._check_servable = after_read(ours._check_servable)
        with contextlib.suppress(VersionError):
            OPERATIONS[operation](ours)
        for late in waits:
            late()
        last = other.journal.last()
        for name in (last.champion, last.shadow):
            assert name in with_memory(other), (point, last)
        if rival == "promote" and operation in ("prove", "promote_again") and next(reads) > point:
            assert last.champion == "12-2", "what was promoted by hand stays"
        if next(reads) <= point:
            return
    raise AssertionError("more reads than points")


def test_a_torn_last_move_does_not_count_and_is_written_over(tmp_path):
    journal = ModelJournal(tmp_path)
    journal.move("promote", "a", "me", "")
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{"time": 1, "act')
    assert journal.last().champion == "a"
    journal.move("promote", "b", "me", "")
    assert [m.champion for m in journal.moves()] == ["a", "b"]


def test_the_newest_move_is_found_before_a_long_stretch_of_lines_that_are_none(tmp_path):
    journal = ModelJournal(tmp_path)
    journal.move("promote", "a", "me", "")
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b"no move\n" * (TAIL_BYTES // 4))
    assert journal.last().champion == "a"

"""One owner of what outlives a stop, and a step that is whole before it begins."""

import ast
from pathlib import Path

import streamd.training
from streamd.settings.paths import Paths
from streamd.training.ledger import Ledger
from tests.builders import HOUR, learning, settings, stream, write_log
from tests.training.test_trainer import SCHEMA, make, process_all

ROOM = Path(streamd.training.__file__).parent
OWNED = {"append_record", "truncate_records", "begin_attempt", "counting_failures", "planned_range",
         "save_checkpoint", "load_checkpoint", "write_hold", "save_facts", "RestartPoint"}
BEHIND_THE_LEDGER = {"ledger", "attempts", "bootstrap", "checkpoint", "retention_hold", "window_records"}
MOVES = {"publish", "prove", "rollback", "drop_before", "sweep"}


def test_nothing_durable_is_written_but_through_the_ledger():
    for path in ROOM.glob("*.py"):
        if path.stem in BEHIND_THE_LEDGER:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not OWNED & {a.name for a in node.names}, f"{path.name} imports around it"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = ast.unparse(node.func.value)
                around = owner.endswith("versions") and node.func.attr in MOVES
                assert not around, f"{path.name}: {ast.unparse(node)}"


def test_a_step_says_before_it_begins_what_is_learned_and_with_what_of_the_past(
    tmp_path, monkeypatch
):
    write_log(tmp_path, *stream(900, hours=12), SCHEMA, watermark=100 * HOUR)
    trainer, registry, log = make(tmp_path, windows__merge_after=2)
    process_all(trainer, 4)
    due = trainer.due()
    s = settings(tmp_path)
    ledger = Ledger(Paths.of(s, "train"), learning(s), s.bootstrap, log, registry, trainer.recorder.live)
    step = ledger.begin(due, trainer.contest.version, trainer.learner)
    assert (step.do, list(step.windows), step.seq) == ("learn", due, log.state.seq)
    assert (step.range.first_edge, step.range.end_edge) == (due[0].first_edge, due[-1].end_edge)
    assert step.version == trainer.contest.version and step.epochs == 2 and step.replay
    named, drawn = trainer.learner.replay.chunks_of, []
    monkeypatch.setattr(trainer.learner.replay, "chunks_of", lambda ids: (drawn.append(ids), named(ids))[1])
    trainer.process(*due)
    assert drawn == [step.replay], "learning takes what the step says, in its order"

"""A changed model, learned beside the version that serves."""

import shutil

import pytest

from tests.builders import HOUR, stream, write_log
from tests.training.test_trainer import SCHEMA, append, make, process_all


@pytest.mark.parametrize("changed", [
    {"model__dim": 12}, {"model__name": "pair", "model__half_lives_seconds": (1, 2, 3, 4, 5)}, {"windows__width_seconds": 7200}])
def test_other_settings_are_learned_beside_the_champion_and_take_over_when_proven(tmp_path, changed):
    write_log(tmp_path, *stream(600, hours=12), SCHEMA, watermark=6 * HOUR)
    trainer, registry, _ = make(tmp_path, bootstrap__epochs=1)
    process_all(trainer)
    serving = registry.champion()
    values = {"bootstrap__epochs": 2, "registry__gate_events": 250, **changed}
    other, _, log = make(tmp_path, **values)
    other.bootstrap()
    assert registry.champion() == serving, "what serves goes on serving"
    standing = [n for n in registry.names() if n != serving][-1]
    assert registry.load(standing).manifest.model == other.learner.model.settings.model_dump(mode="json")
    append(tmp_path, 600, 400, 12 * HOUR, seconds=100)
    log.refresh()
    first = process_all(other, 2)[-1]
    assert not first.promoted and registry.champion() == serving
    assert first.scores["incumbent"]["mrr"] > 0 and other.contest.compared.num_events > 0
    again, _, _ = make(tmp_path, **values)
    assert again.contest.compared == other.contest.compared, "a restart goes on comparing"
    records = process_all(again)
    promoted = [r for r in records if r.promoted]
    assert promoted == records[-len(promoted):] and registry.champion() == promoted[-1].version
    assert registry.shadow() in [r.version for r in promoted], "a rollback goes back to a version of the new settings"
    assert "incumbent" not in promoted[-1].scores


def test_an_incumbent_scores_what_its_own_trainer_would_have_scored_it(tmp_path):
    write_log(tmp_path / "a", *stream(600, hours=12), SCHEMA, watermark=6 * HOUR)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    trainer, _, log = make(tmp_path / "a")
    process_all(trainer)
    shutil.rmtree(tmp_path / "b")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    other, _, other_log = make(tmp_path / "b", model__name="pair")
    other.bootstrap()
    for path in (tmp_path / "a", tmp_path / "b"):
        append(path, 600, 60, 12 * HOUR)
    log.refresh()
    other_log.refresh()
    own, beside = process_all(trainer, 1)[0], process_all(other, 1)[0]
    assert own.first_edge == beside.first_edge
    assert beside.scores["incumbent"] == own.scores["live"]


def test_a_champion_of_other_settings_moved_there_by_hand_is_learned_beside_not_followed(tmp_path):
    write_log(tmp_path, *stream(600, hours=12), SCHEMA, watermark=6 * HOUR)
    trainer, registry, _ = make(tmp_path)
    process_all(trainer)
    old = registry.champion()
    shutil.copytree(registry.folder / old, tmp_path / "backup")
    other, _, log = make(tmp_path, model__name="pair")
    other.bootstrap()
    own = [n for n in registry.names() if n != old][-1]
    registry.promote(own, "someone", "I know better")
    append(tmp_path, 600, 300, 12 * HOUR, seconds=60)
    log.refresh()
    assert process_all(other, 1)[0].promoted and other.contest.incumbent is None
    shutil.copytree(tmp_path / "backup", registry.folder / old, dirs_exist_ok=True)
    registry.rollback("someone", "I did not") if registry.shadow() == old else registry.promote(old, "someone", "back")
    record, = process_all(other, 1)
    assert registry.champion() == old and not record.promoted
    assert other.contest.incumbent.name == old and record.scores["incumbent"]["mrr"] > 0, "it learns on, beside the one that serves"

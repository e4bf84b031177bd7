"""Scores in the topic equal the prequential scores of the windows."""

import numpy as np
import pytest

from streamd.eventlog.reader import LogReader
from streamd.graph.negatives import SCORED
from streamd.graph.ranking import ranks
from streamd.models.architectures import ARCHITECTURES
from streamd.models.loading import load_model
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.windows import recorded_windows
from streamd.windows.history import HistoryReader
from tests.builders import HOUR, learning, stream, write_log
from tests.scoring.world import Feed, Scoring
from tests.server.world import SCHEMA, World


def prequential(settings, version, whole):
    """By one version: event -> its logits, and the first event of its chunk; windows learn nothing meanwhile."""
    log = LogReader.open(whole)
    recorder, learner = Recorder(learning(settings), log), Learner(learning(settings), log, ReplayStore(None, 1, 0))
    learner.restore_weights(version.weights, None)
    _, learner.memory = load_model(version, log.state.schema)
    recorder.rebuild(version.manifest.edge)
    logits, chunks = {}, {}
    for window in recorded_windows(log, HOUR):
        for chunk in recorder.chunks(window) if window.first_edge >= version.manifest.edge else ():
            scored = learner.score(chunk)
            if chunk.score is not None:
                events = chunk.score.event_E.tolist()
                logits.update(zip(events, scored, strict=True))
                chunks.update(dict.fromkeys(events, chunk.first_edge))
    return logits, chunks


def ragged(seed, at, end):
    """Ends of commits that cut runs of equal times anywhere."""
    rng = np.random.default_rng(seed)
    while at < end:
        at = min(end, at + int(rng.integers(1, 30)))
        yield at


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in ("tgn", "sage", "pair"))) for n in ARCHITECTURES])
def test_the_rank_in_the_topic_is_the_windows_rank_of_the_same_version(tmp_path, name):
    src, dst, time_E = stream(420, hours=4)
    time_E[300:306] = time_E[300]
    dst[302] = src[302]  # a self loop
    dst[380] = 35  # a destination never seen
    whole = tmp_path / "whole"
    write_log(whole, src, dst, time_E, SCHEMA)
    path = tmp_path / "data"
    write_log(path, src[:260], dst[:260], time_E[:260], SCHEMA)
    world = World(path, model__name=name, registry__keep=1, model__snapshot_seconds=3600)
    world.train()
    version = world.registry.load(world.registry.champion())
    logits, chunks = prequential(world.settings, version, whole)

    scoring = Scoring(world.settings).ready()
    feed = Feed(path, whole, SCHEMA, 260)
    for end in ragged(1, 260, 420):
        feed.commit(end)
        scoring.turn()
    feed.close()

    records = scoring.topic.records
    assert [r.event for r in records] == list(range(260, 420)) and scoring.skipped == {}
    assert {r.version for r in records} == {version.manifest.name}
    for r in records:
        np.testing.assert_allclose(r.score, logits[r.event][0], atol=1e-5)
        assert (r.rank, r.memory_event) == (ranks(logits[r.event][None])[0], chunks[r.event]), r.event
        assert (r.src, r.dst, r.time_us) == (f"n:{src[r.event]}", f"n:{dst[r.event]}", time_E[r.event])
    assert [r.event for r in records if not r.known] == [302, 380]
    assert len(set(chunks.values())) >= 4 and SCORED.stop == 101


def test_windows_and_topic_agree_while_versions_are_learned_and_swapped(tmp_path):
    """The trainer learns each window as it closes; the MRR that it writes is that of the topic's records."""
    src, dst, time_E = stream(900, hours=6)
    whole, path = tmp_path / "whole", tmp_path / "data"
    write_log(whole, src, dst, time_E, SCHEMA)
    cut = int(np.searchsorted(time_E, 2 * HOUR))
    write_log(path, src[:cut], dst[:cut], time_E[:cut], SCHEMA, watermark=2 * HOUR)
    world = World(path)
    world.train()
    scoring = Scoring(world.settings).ready()
    feed = Feed(path, whole, SCHEMA, cut)
    for hour in range(3, 7):
        end = int(np.searchsorted(time_E, hour * HOUR))
        for at in ragged(hour, feed.at, end):
            feed.commit(at, hour * HOUR if at == end else None)
            scoring.turn()
        world.train()
        scoring.ready()
    feed.close()

    windows = [w for w in HistoryReader(path).refresh() if w.first_edge >= cut]
    assert len(windows) == 4 and len({w.scored_by for w in windows}) == 4
    for w in windows:
        own = [r for r in scoring.topic.records if w.first_edge <= r.event < w.end_edge]
        assert {r.version for r in own} == {w.scored_by} and len(own) == w.num_scored
        assert np.mean([1 / r.rank for r in own]) == pytest.approx(w.scores["live"]["mrr"], abs=1e-12)
        assert sum(r.known for r in own) == w.num_known

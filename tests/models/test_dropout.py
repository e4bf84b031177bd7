import torch

from streamd.models.layers.dropout import dropout_key, half_dropout


def kept(event, num_candidates=11, width=7, key=1):
    event = torch.as_tensor(event)
    return half_dropout(torch.ones(len(event), num_candidates, width), key, event)


def test_half_dropout_drops_half_and_keeps_the_mean():
    out = kept(range(300))
    assert set(out.unique().tolist()) == {0.0, 2.0} and abs(float(out.mean()) - 1) < 0.02
    for width in (64, 130):
        wide = kept(range(200), width=width)
        assert (wide.mean((0, 1)) - 1).abs().max() < 0.1 and (wide.mean((0, 2)) - 1).abs().max() < 0.05
        units = wide.reshape(-1, width) - 1
        correlation = units.T @ units / len(units) - torch.eye(width)
        assert correlation.abs().max() < 0.13, "units fall independently of one another"


def test_what_falls_depends_on_seed_window_epoch_event_candidate_and_unit_alone():
    whole, key = kept(range(50, 90)), dropout_key(3, 1000, 0)
    assert torch.equal(torch.cat([kept(range(50, 61)), kept(range(61, 90))]), whole), "not on how events are batched"
    assert torch.equal(kept([70, 52])[0], whole[20]) and torch.equal(kept(range(50, 90), 5), whole[:, :5])
    others = {dropout_key(3, 1000, 0), dropout_key(4, 1000, 0), dropout_key(3, 1001, 0), dropout_key(3, 1000, 1)}
    assert len(others) == 4 and key in others
    for other in others - {key}:
        assert 0.4 < (kept(range(100), key=other) == kept(range(100), key=key)).float().mean() < 0.6

"""The held-out tail of a window: its last events, which validate the training on the others."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict

import torch
from torch import Tensor

from streamd.events import Bools, Float32
from streamd.graph.ranking import among_candidates, ranks
from streamd.models.inputs import LinkInputs
from streamd.models.rule import scores_of_rules
from streamd.ranks import Ranks
from streamd.training.replay import ReplayChunk


class TailMeasures(TypedDict):
    """The fields of `TrainResult` that the held-out tail determines."""

    tail_before: float
    tail_after: float
    tail_rule: float
    num_tail: int


def tail_measures(
    before_EC: Float32, after_EC: Float32, of_rules: Sequence[Float32]
) -> TailMeasures:
    """MRR before and after training, and by the best rule; NaN if no event is held out.

    before_EC, after_EC, of_rules: scores of the same events, float32[E, 11]; the last one by each
    rule.
    """
    before, after, *by_rule = (
        float((1 / ranks(scores)).mean()) if len(scores) else math.nan
        for scores in (before_EC, after_EC, *of_rules)
    )
    return TailMeasures(
        tail_before=before, tail_after=after, tail_rule=max(by_rule), num_tail=len(before_EC)
    )


def ranked_by_rules(inputs: LinkInputs, held_E: Bools) -> dict[str, Float32]:
    """Scores by each rule of a chunk's held-out events, float32[E, 11].

    held_E: bool, which events of the chunk are held out.
    """
    is_candidate_EC = inputs.is_candidate_EC.numpy()[held_E]
    by_rule = scores_of_rules(inputs.facts_ECF.numpy()[held_E])
    return {name: among_candidates(scores, is_candidate_EC) for name, scores in by_rule.items()}


def learned_weights(
    chunks: Sequence[ReplayChunk | None], num_learned: int, ranks: Ranks
) -> list[Tensor]:
    """Weights of a window's events, float32[E] for each chunk: 1 for the first `num_learned`, which
    are trained on, and 0 for the others. With several ranks, each has the weights of its share."""
    # Count events over all ranks, so that all hold out the same ones.
    left = num_learned
    weights = []
    for chunk in chunks:
        count = chunk.num_events if chunk is not None else 0
        own = ranks.share(count)
        weights.append((torch.arange(own.start, own.stop) < left).float())
        left -= count
    return weights


def held_out_chunks(
    chunks: Sequence[ReplayChunk | None], weights: Sequence[Tensor], num_learned: int
) -> list[ReplayChunk]:
    """The chunks with held-out events; all other events have weight 0 in them.

    weights: as `learned_weights` returned them for the same chunks.
    """
    left = num_learned
    held_out = []
    for chunk, weight_E in zip(chunks, weights, strict=True):
        if chunk is None:
            continue
        # The chunk that holds the boundary is both trained on and held out.
        if chunk.num_events > max(left, 0):
            held_out.append(replace(chunk, inputs=chunk.inputs.weighted(1 - weight_E)))
        left -= chunk.num_events
    return held_out

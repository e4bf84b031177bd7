"""The held-out tail of a window: its last events, which check what was learned from the others."""

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
    """The fields of `TrainResult` that the held-out tail gives."""

    tail_before: float
    tail_after: float
    tail_rule: float
    num_tail: int


def tail_measures(
    before_EC: Float32, after_EC: Float32, of_rules: Sequence[Float32]
) -> TailMeasures:
    """MRR before and after learning and by the best rule; NaN if nothing is held out.

    All are scores of the same events, float32[E, 11]. of_rules: by each rule.
    """
    before, after, *by_rule = (
        float((1 / ranks(scores)).mean()) if len(scores) else math.nan
        for scores in (before_EC, after_EC, *of_rules)
    )
    return TailMeasures(
        tail_before=before, tail_after=after, tail_rule=max(by_rule), num_tail=len(before_EC)
    )


def ranked_by_rules(inputs: LinkInputs, held_E: Bools) -> dict[str, Float32]:
    """Scores of those events of a chunk that are held out by each rule, float32[E, 11].

    held_E: bool, which.
    """
    is_candidate_EC = inputs.is_candidate_EC.numpy()[held_E]
    by_rule = scores_of_rules(inputs.facts_ECF.numpy()[held_E])
    return {name: among_candidates(scores, is_candidate_EC) for name, scores in by_rule.items()}


def learned_weights(
    chunks: Sequence[ReplayChunk | None], num_learned: int, ranks: Ranks
) -> list[Tensor]:
    """Weights of a window's events, float32[E] for each chunk: 1 for the first `num_learned`, which
    are learned, and 0 for the others. Of several ranks each has those of its share."""
    # Events count over all ranks, so that all hold out the same ones.
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
    """The chunks with events that are held out, each weighted to these. weights: as
    `learned_weights` returned them for the same chunks."""
    left = num_learned
    held_out = []
    for chunk, weight_E in zip(chunks, weights, strict=True):
        if chunk is None:
            continue
        # The chunk in which learning ends is both learned and held out.
        if chunk.num_events > max(left, 0):
            held_out.append(replace(chunk, inputs=chunk.inputs.weighted(1 - weight_E)))
        left -= chunk.num_events
    return held_out

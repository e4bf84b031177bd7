"""The held-out tail of a window: its last events, which check what was learned from the others."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from streamd.ranks import Ranks
from streamd.training.replay import ReplayChunk


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

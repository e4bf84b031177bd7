"""Dropout by a hash of event, candidate and unit, so that it is the same for any chunks, batches
and ranks."""

import numpy as np
import torch
from torch import Tensor

from streamd.graph.hashing import FIRST, GOLDEN, SECOND, mix

WORD = 64
"""Units that one hash decides."""


def dropout_key(seed: int, window: int, epoch: int) -> int:
    """A 64-bit key of one pass over a window. window: its first event id."""
    key = np.zeros(1, np.uint64)
    # Hashed in turn, so that their order matters; plus one, so that 0 changes the key too.
    for part in (seed, window, epoch):
        key = mix((key + np.uint64(part + 1)) * GOLDEN)
    return int(key[0])


def half_dropout(x_ECD: Tensor, key: int | Tensor, event_E: Tensor) -> Tensor:
    """Dropout at 1/2 of float32[E, C, D]: a bit of a SplitMix64 hash decides whether unit d of
    candidate c of an event is dropped.

    key: a `dropout_key`, or a tensor of its bits, int64[]. event_E: int64 event ids. One hash
    decides about 64 units: a hash for each unit would take a tenth of a training step.
    """
    num_events, num_candidates, width = x_ECD.shape
    words = -(-width // WORD)
    number = torch.arange(1, num_candidates * words + 1, device=x_ECD.device)

    # A hash of the event, then one of each word of 64 units.
    of_event_E = mix_tensor(
        event_E * _to_int64(GOLDEN) + (key if isinstance(key, Tensor) else _to_int64(key))
    )
    word_EW = mix_tensor(of_event_E[:, None] + number * _to_int64(GOLDEN))

    # A bit of the word for each unit.
    byte_EB1 = word_EW.view(torch.uint8)[..., None]
    bit = (byte_EB1 >> torch.arange(8, dtype=torch.uint8, device=x_ECD.device)) & 1
    kept_ECD = bit.view(num_events, num_candidates, words * WORD)[..., :width]

    # Remaining units are doubled, which keeps the mean.
    out: Tensor = x_ECD * (kept_ECD.to(x_ECD.dtype) * 2.0)
    return out


def mix_tensor(x: Tensor) -> Tensor:
    """`streamd.graph.hashing.mix` on int64 tensors; products wrap around."""
    x = (x ^ _shift_right(x, 30)) * _to_int64(FIRST)
    x = (x ^ _shift_right(x, 27)) * _to_int64(SECOND)
    out: Tensor = x ^ _shift_right(x, 31)
    return out


def _shift_right(x: Tensor, by: int) -> Tensor:
    """Shift right as an unsigned number."""
    out: Tensor = (x >> by) & (2 ** (64 - by) - 1)
    return out


def _to_int64(number: int | np.uint64) -> int:
    """The signed 64-bit number with the bits of an unsigned one."""
    return int(np.uint64(number).astype(np.int64))

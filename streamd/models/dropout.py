"""Dropout as a function of what it falls on: the same whatever chunks, batches or machines the
events come in."""

import torch
from torch import Tensor

WORD = 64
"""Units that one hash decides about."""
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def dropout_key(seed: int, window: int, epoch: int) -> int:
    """A 64-bit key of one pass over a window. window: its first edge."""
    key = 0
    for part in (seed, window, epoch):
        key = _mix_number((key + part + 1) * _GOLDEN % 2**64)
    return key


def half_dropout(x_ECD: Tensor, key: int, event_E: Tensor) -> Tensor:
    """Dropout at 1/2 of float32[E, C, D]: unit d of candidate c of an event falls by a bit of a
    SplitMix64 hash.

    event_E: int64 edge ids. A word of 64 units costs one hash; drawing units singly took a tenth of
    a training step.
    """
    num_events, num_candidates, width = x_ECD.shape
    words = -(-width // WORD)
    number = torch.arange(1, num_candidates * words + 1, device=x_ECD.device)
    of_event_E = _mix(event_E * _signed(_GOLDEN) + _signed(key))
    word_EW = _mix(of_event_E[:, None] + number * _signed(_GOLDEN))
    byte_EB = word_EW.view(torch.uint8).view(num_events, -1, 1)
    bit = (byte_EB >> torch.arange(8, dtype=torch.uint8, device=x_ECD.device)) & 1
    kept_ECD = bit.view(num_events, num_candidates, words * WORD)[..., :width]
    out: Tensor = x_ECD * (kept_ECD.to(x_ECD.dtype) * 2.0)
    return out


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finalizer on int64 tensors, whose products wrap around."""
    x = (x ^ _shifted(x, 30)) * _signed(_FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(_SECOND)
    out: Tensor = x ^ _shifted(x, 31)
    return out


def _shifted(x: Tensor, by: int) -> Tensor:
    """Shifted right as an unsigned number."""
    out: Tensor = (x >> by) & (2 ** (64 - by) - 1)
    return out


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _mix_number(x: int) -> int:
    x = (x ^ (x >> 30)) * _FIRST % 2**64
    x = (x ^ (x >> 27)) * _SECOND % 2**64
    return x ^ (x >> 31)

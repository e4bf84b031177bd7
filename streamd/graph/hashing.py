"""SplitMix64 (Steele et al. 2014): the hash behind random draws, dropout and hash tables, with
equal results on every machine.

The n-th number of a stream is `mix(state + n * GOLDEN)`. `streamd.models.layers.dropout` computes
the same on tensors, and `streamd/gpu/kernels/sampling.cu` on a GPU; tests compare the three.
"""

from typing import Any

import numpy as np

from streamd.graph.jit import inner

# The stream's step is 2^64 over the golden ratio, made odd; the factors are those of its finalizer,
# Stafford's variant 13 of MurmurHash3's.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST = np.uint64(0xBF58476D1CE4E5B9)
SECOND = np.uint64(0x94D049BB133111EB)


def mix(x: Any) -> Any:
    """SplitMix64's finalizer on uint64[...], same shape; products wrap around."""
    x = (x ^ (x >> np.uint64(30))) * FIRST
    x = (x ^ (x >> np.uint64(27))) * SECOND
    return x ^ (x >> np.uint64(31))


mixed = inner(mix)
"""`mix` of one uint64, for kernels."""

import re

import numpy as np
import torch

from streamd.gpu.launch import KERNELS
from streamd.graph.hashing import FIRST, GOLDEN, SECOND, mix, mixed
from streamd.graph.jit import kernel
from streamd.models.layers.dropout import mix_tensor

PUBLISHED = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
"""First numbers of the stream of seed 0, as the generator's authors give them."""


@kernel
def mixed_in_a_kernel(x, out):
    for i in range(len(x)):
        out[i] = mixed(x[i])


def test_every_splitmix64_gives_the_published_numbers():
    state = np.arange(1, 5, dtype=np.uint64) * GOLDEN
    in_kernel = np.zeros_like(state)
    mixed_in_a_kernel(state, in_kernel)
    in_torch = mix_tensor(torch.from_numpy(state.view(np.int64))).numpy().view(np.uint64)
    for found in (mix(state), in_kernel, in_torch):
        assert found.tolist() == PUBLISHED
    source = (KERNELS / "sampling.cu").read_text()
    body = re.search(r"u64 mixed\(u64 x\) \{(.*?)\n\}", source, re.S).group(1).split()
    assert " ".join(body) == (f"x = (x ^ (x >> 30)) * 0x{FIRST:X}ULL; x = (x ^ (x >> 27)) * 0x{SECOND:X}ULL; "
                              "return x ^ (x >> 31);"), "draw for draw, `tests.gpu.test_blocks` holds the rest"

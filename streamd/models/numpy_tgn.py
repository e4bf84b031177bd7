"""A TGN in numpy, for answers on a CPU: of a few nodes torch makes a hundred small calls, ten times
the arithmetic.

The same numbers as `LinkModel` makes of the same weights, to float32's rounding; it learns nothing.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor, nn

from streamd.events import Float32, Int64
from streamd.graph.neighborhood import Neighborhood
from streamd.models.memory import Memory
from streamd.models.standardize import CLIP, RunningStandardizer, SetStandardizer
from streamd.models.tgn import TGNLayer

if TYPE_CHECKING:
    from streamd.models.link import LinkModel

Linear = tuple[Float32, Float32]
"""Weight as [in, out], and bias."""


class NumpyTGN:
    """The weights of a TGN as numpy arrays, made once per version, whose weights never change."""

    def __init__(self, model: "LinkModel") -> None:
        layer = model.encoder.layers[0]
        encoder = model.encoder
        assert isinstance(layer, TGNLayer) and encoder.time is not None

        # What inputs are standardised by, and what states begin with.
        attention = layer.attention
        self._gap_us = float(model.gap())
        self._time = _numpy(encoder.time.weight)
        self._phase = _numpy(encoder.time.bias)
        self._edge_stats = _stats(model.edge_stats)
        self._node_stats = _stats(model.node_stats)
        self._node_in = None if encoder.node_in is None else _numpy(encoder.node_in.weight.T)
        self._id_vectors = None if encoder.id_vectors is None else _numpy(encoder.id_vectors.weight)
        self._query, self._skip, self._src, self._dst = map(
            _linear, (attention.query, layer.skip, model.head_src, model.head_dst)
        )

        # Attention, its weights by head; the division of scores is folded into the keys.
        self._key_HWD = (
            _numpy(attention.key.weight).reshape(attention.heads, attention.width, -1)
            / attention.width**0.5
        )
        self._value_HDW = (
            _numpy(attention.value.weight)
            .reshape(attention.heads, attention.width, -1)
            .transpose(0, 2, 1)
        )
        self._query_shape = (-1, attention.heads, 1, attention.width)
        self._dim = model.settings.dim
        self._out = _numpy(model.head_out.weight[0])
        self._set = None if model.head_set is None else _numpy(model.head_set.weight.T)

        # The network over pair facts.
        self._fact_stats = _stats(model.fact_stats)
        layers = [part for part in model.pair if isinstance(part, nn.Linear)]
        self._pair = list(map(_linear, layers)) if model.settings.pair_facts else []

    def embed(self, memory: Memory, updated_PD: Tensor, around: Neighborhood) -> Float32:
        """float32[3, U, D]: the embeddings of a neighbourhood's roots, and what the head makes of
        them as sources and as destinations. updated_PD: `LinkModel.updated`."""
        hop = around.hops[0]
        h_MD = self._states(memory, updated_PD, around)
        own_UD = h_MD[hop.root_U]
        mask_U11K = hop.mask_UK[:, None, None]

        # What the layer sees of each neighbour: state, edge features, time encoding.
        gaps_UK = (hop.ago_UK / self._gap_us).astype(np.float32)
        entry_U1KD = np.concatenate(
            [
                h_MD[hop.neighbor_UK],
                _standardised(hop.edge_UKD, self._edge_stats),
                np.cos(gaps_UK[..., None] * self._time + self._phase),
            ],
            2,
        )[:, None]

        # Keys are folded into the query: one product per root instead of one per neighbour.
        folded_UH1D = _apply(self._query, own_UD).reshape(self._query_shape) @ self._key_HWD
        score_UH1K = np.where(mask_U11K, folded_UH1D @ entry_U1KD.swapaxes(2, 3), np.float32(-1e9))
        weight_UH1K = np.exp(score_UH1K - score_UH1K.max(3, keepdims=True)) * mask_U11K
        weight_UH1K /= np.maximum(weight_UH1K.sum(3, keepdims=True), np.float32(1e-9))

        # The weighted sum first, then the value projection.
        out_UH1W = (weight_UH1K @ entry_U1KD) @ self._value_HDW
        z_UD = out_UH1W.reshape(-1, self._dim) + _apply(self._skip, own_UD)
        return np.stack([z_UD, _apply(self._src, z_UD), _apply(self._dst, z_UD)])

    def logits(self, facts_RF: Float32, src_RD: Float32, dst_RD: Float32) -> Float32:
        """Logit per row, float32[R], of facts and what `embed` says of each row's source and
        destination."""
        # What the graph adds, then what the pair says by itself.
        if self._set is not None:
            src_RD = src_RD + facts_RF[:, -len(self._set) :] @ self._set
        out: Float32 = np.maximum(src_RD + dst_RD, 0) @ self._out
        if self._pair:
            x = _standardised(facts_RF, self._fact_stats)
            for linear in self._pair[:-1]:
                x = np.maximum(_apply(linear, x), 0)
            out += _apply(self._pair[-1], x)[:, 0]
        return out

    def _states(self, memory: Memory, updated_PD: Tensor, around: Neighborhood) -> Float32:
        """What the layer sees of each node, float32[M, D]: memory, node features and id vectors."""
        # Stored states, and those that a pending message has changed.
        node_M = around.node_M
        h_MD = memory.host_states(node_M, updated_PD.numpy())

        # The rest of a first state, as in `Encoder.start`.
        if self._node_in is not None:
            h_MD += _standardised(around.node_MD, self._node_stats) @ self._node_in
        if self._id_vectors is not None:
            h_MD += (
                self._id_vectors[np.maximum(node_M, 0) % len(self._id_vectors)]
                * (node_M >= 0)[:, None]
            )
        return h_MD


def _numpy(tensor: Tensor) -> Float32:
    array: Float32 = tensor.detach().numpy()
    return array


def _linear(layer: nn.Linear) -> Linear:
    return np.ascontiguousarray(_numpy(layer.weight).T), _numpy(layer.bias)


def _apply(linear: Linear, x: Float32) -> Float32:
    out: Float32 = x @ linear[0] + linear[1]
    return out


class _Stats(NamedTuple):
    """set_of: int64[dim] where rows are of several sets, as in `SetStandardizer`."""

    shift: Float32
    scale: Float32
    set_of: Int64 | None = None


def _stats(stats: RunningStandardizer | SetStandardizer) -> _Stats:
    set_of = stats.set_of.numpy() if isinstance(stats, SetStandardizer) else None
    return _Stats(_numpy(stats.shift), _numpy(stats.scale), set_of)


def _standardised(x: Float32, stats: _Stats) -> Float32:
    out: Float32 = (x - stats.shift) * stats.scale
    np.maximum(out, -CLIP, out=out)
    np.minimum(out, CLIP, out=out)
    if stats.set_of is not None:
        out *= x[..., stats.set_of]
    return out

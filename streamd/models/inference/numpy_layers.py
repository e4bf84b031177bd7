"""The layers of `streamd.models.inference.numpy_model`. Each has the weights of a torch module, by
the same names, and the same output up to float32 rounding.

Shape suffixes as in `streamd.models`; R rows, I inputs, O outputs of a layer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamd.errors import VersionError
from streamd.events import Bools, Float32, Int64
from streamd.models.inference.standard_values import CLIP, LEAST_SPREAD
from streamd.models.inference.stored_weights import with_all_facts

Float64 = NDArray[np.float64]


class StoredWeights:
    """The weights of a version. The layers take them by name, each with the shape that the model
    expects; in the end none may be left."""

    def __init__(self, weights: Mapping[str, NDArray[Any]], num_edge_sets: int) -> None:
        self._left = dict(weights)
        self._num_edge_sets = num_edge_sets

    def take(self, name: str, *shape: int) -> NDArray[Any]:
        """Take a weight. Raises: VersionError if no weight has this name and shape."""
        stored = self._left.pop(name, None)
        if stored is None:
            raise mismatch(f"{name} is missing")
        array: NDArray[Any] = with_all_facts(stored, shape, self._num_edge_sets, name)
        if array.shape != shape:
            raise mismatch(f"{name} has the shape {array.shape}, the model expects {shape}")
        return array

    def float32(self, name: str, *shape: int) -> Float32:
        return np.ascontiguousarray(self.take(name, *shape), np.float32)

    def optional(self, name: str, *shape: int) -> Float32:
        """Take a weight that versions of older releases lack: zeros if it is missing."""
        return self.float32(name, *shape) if name in self._left else np.zeros(shape, np.float32)

    def optional64(self, name: str, *shape: int) -> Float64:
        """The same in double precision."""
        return self.take(name, *shape) if name in self._left else np.zeros(shape)

    def linear(self, name: str, inputs: int, outputs: int) -> "Linear":
        weight_OI = self.float32(f"{name}.weight", outputs, inputs)
        return Linear(np.ascontiguousarray(weight_OI.T), self.float32(f"{name}.bias", outputs))

    def end(self) -> None:
        """Check that no weight is left. Raises: VersionError if the model does not have some."""
        if self._left:
            raise mismatch(f"the model has no {', '.join(sorted(self._left))}")


def mismatch(why: str) -> VersionError:
    return VersionError(
        f"The weights do not fit the model: {why}.",
        "use the release of streamd that wrote them, or promote another version.",
    )


class Linear(NamedTuple):
    """weight_IO: float32[I, O]; bias_O: float32[O]."""

    weight_IO: Float32
    bias_O: Float32

    def __call__(self, x_RI: Float32) -> Float32:
        out: Float32 = x_RI @ self.weight_IO
        out += self.bias_O
        return out


class Standardizer:
    """`RunningStandardizer`, or `SetStandardizer` for rows of several sets."""

    def __init__(
        self, stored: StoredWeights, name: str, dim: int, columns: Sequence[slice] = ()
    ) -> None:
        """columns: as in `SetStandardizer`; with one slice or none, all columns are of one set."""
        self._set_of: Int64 | None = None
        if len(columns) < 2:
            mean, std = _moments(stored, name, dim)
            self._shift, self._scale = _shift_and_scale(mean, std)
            self._mean, self._std = mean.astype(np.float32), std.astype(np.float32)
            return

        # The one-hot of the set comes first, then the features of each set.
        self._shift, self._scale = np.zeros(dim, np.float32), np.ones(dim, np.float32)
        self._set_of = np.arange(dim)
        for number, own in enumerate(columns):
            moments = _moments(stored, f"{name}.sets.{number}", own.stop - own.start)
            self._shift[own], self._scale[own] = _shift_and_scale(*moments)
            self._set_of[own] = number

    def __call__(self, rows: Float32) -> Float32:
        """float32 rows [..., dim], standardised."""
        out: Float32 = rows - self._shift
        out *= self._scale
        np.maximum(out, -CLIP, out=out)
        np.minimum(out, CLIP, out=out)
        if self._set_of is not None:
            # Keep the one-hot, and the zeros of other sets.
            out *= rows[..., self._set_of]
        return out

    @property
    def mean(self) -> Float32:
        """float32[dim]; only for rows of one set."""
        return self._mean

    def back(self, rows: Float32) -> Float32:
        """Convert standardised values back to their unit; only for rows of one set."""
        out: Float32 = rows * self._std
        out += self._mean
        return out


def _moments(stored: StoredWeights, name: str, dim: int) -> tuple[Float64, Float64]:
    """Mean and spread of each column: float64[dim]."""
    stored.take(f"{name}.count")
    return stored.take(f"{name}.mean", dim), np.sqrt(stored.take(f"{name}.var", dim))


def _shift_and_scale(mean: Float64, std: Float64) -> tuple[Float32, Float32]:
    scale = np.where(std > LEAST_SPREAD, 1.0 / np.maximum(std, LEAST_SPREAD), 0.0)
    return mean.astype(np.float32), scale.astype(np.float32)


class NumpyTimeEncoding:
    """`streamd.models.layers.time_encoding.TimeEncoding` of microseconds."""

    def __init__(self, stored: StoredWeights, name: str, dim: int, gap_us: float) -> None:
        self._weight = stored.float32(f"{name}.weight", dim)
        self._bias = stored.float32(f"{name}.bias", dim)
        self._gap_us = gap_us

    def __call__(self, microseconds: Int64) -> Float32:
        """int64[...] to float32[..., dim]."""
        angle: Float32 = (microseconds / self._gap_us).astype(np.float32)[..., None] * self._weight
        angle += self._bias
        return np.cos(angle, out=angle)


class GRUCell:
    """`torch.nn.GRUCell` (Cho et al. 2014): gates in the order reset, update, new."""

    def __init__(self, stored: StoredWeights, name: str, inputs: int, dim: int) -> None:
        self._dim = dim

        def linear(kind: str, width: int) -> Linear:
            weight = stored.float32(f"{name}.weight_{kind}", 3 * dim, width)
            bias = stored.float32(f"{name}.bias_{kind}", 3 * dim)
            return Linear(np.ascontiguousarray(weight.T), bias)

        self._of_input, self._of_state = linear("ih", inputs), linear("hh", dim)

    def __call__(self, x_PI: Float32, h_PD: Float32) -> Float32:
        """float32[P, D]."""
        input_P3D, state_P3D = self._of_input(x_PI), self._of_state(h_PD)
        d = self._dim

        # Both gates at once.
        gates = input_P3D[:, : 2 * d]
        gates += state_P3D[:, : 2 * d]
        gates = sigmoid(gates)
        reset_PD, update_PD = gates[:, :d], gates[:, d:]

        # The candidate state, then the mean of candidate and old state, by the update gate.
        new_PD = state_P3D[:, 2 * d :]
        new_PD *= reset_PD
        new_PD += input_P3D[:, 2 * d :]
        np.tanh(new_PD, out=new_PD)
        out: Float32 = h_PD - new_PD
        out *= update_PD
        out += new_PD
        return out


class RootAttention:
    """`NeighborAttention`, which projects root rows instead of neighbor rows."""

    def __init__(
        self, stored: StoredWeights, name: str, query_dim: int, entry_dim: int, dim: int, heads: int
    ) -> None:
        width = dim // heads
        self._dim = dim
        self._by_head = (heads, width)
        self._query = stored.linear(f"{name}.query", query_dim, dim)
        by_head = (heads, width, entry_dim)
        # Fold the division of the scores into the keys.
        key_HWE = stored.float32(f"{name}.key.weight", dim, entry_dim).reshape(by_head)
        self._key_HWE = key_HWE / np.float32(width**0.5)
        value_HWE = stored.float32(f"{name}.value.weight", dim, entry_dim).reshape(by_head)
        self._value_HEW = np.ascontiguousarray(value_HWE.transpose(0, 2, 1))

    def __call__(
        self, query_UD: Float32, entry_UKE: Float32, mask_UK: NDArray[np.bool_]
    ) -> Float32:
        """float32[U, dim]; zeros for a root without neighbors."""
        weight_UHK = self.weights(query_UD, entry_UKE, mask_UK)

        # Sum the weighted entries first, then project the sum.
        mixed_UHE: Float32 = weight_UHK @ entry_UKE
        out_HUW: Float32 = mixed_UHE.transpose(1, 0, 2) @ self._value_HEW
        out: Float32 = out_HUW.transpose(1, 0, 2).reshape(-1, self._dim)
        return out

    def weights(self, query_UD: Float32, entry_UKE: Float32, mask_UK: Bools) -> Float32:
        """Attention weights, float32[U, heads, K]: they add up to 1 over a root's neighbors and
        are 0 for padding."""
        # Fold the keys into the queries, head by head.
        q_UHW = self._query(query_UD).reshape(-1, *self._by_head)
        folded_HUE = q_UHW.transpose(1, 0, 2) @ self._key_HWE
        mask_U1K = mask_UK[:, None]
        score_UHK = folded_HUE.transpose(1, 0, 2) @ entry_UKE.swapaxes(1, 2)

        # Padding has weight 0; a root with padding alone gets zeros.
        weight_UHK: Float32 = np.where(mask_U1K, score_UHK, np.float32(-1e9))
        weight_UHK -= weight_UHK.max(2, keepdims=True, initial=np.float32(-1e9))
        np.exp(weight_UHK, out=weight_UHK)
        weight_UHK *= mask_U1K
        weight_UHK /= np.maximum(weight_UHK.sum(2, keepdims=True), np.float32(1e-9))
        return weight_UHK


class Network:
    """Linear layers with ReLU between them."""

    def __init__(self, *layers: Linear) -> None:
        self._layers = layers

    def __call__(self, x_RI: Float32) -> Float32:
        for layer in self._layers[:-1]:
            x_RI = layer(x_RI)
            np.maximum(x_RI, 0, out=x_RI)
        return self._layers[-1](x_RI)


def sigmoid(x: Float32) -> Float32:
    """1 / (1 + exp(-x)), written into x."""
    # By tanh, which does not overflow.
    x *= np.float32(0.5)
    np.tanh(x, out=x)
    x += np.float32(1)
    x *= np.float32(0.5)
    return x


def softmax(x_RO: Float32) -> Float32:
    """Over each row."""
    out: Float32 = np.exp(x_RO - x_RO.max(1, keepdims=True))
    out /= out.sum(1, keepdims=True)
    return out

"""`streamd.models.new_score.NewScore` in numpy."""

import numpy as np

from streamd.events import Float32
from streamd.models.inference.numpy_layers import StoredWeights
from streamd.models.inference.standard_values import AGE_SHIFT, MATCH_SCALE, NEW_HIDDEN
from streamd.models.inference.stored_weights import NEW_SCORE


class NumpyNewScore:
    """`streamd.models.new_score.NewScore` documents each method."""

    def __init__(self, stored: StoredWeights, facts: int, columns: int) -> None:
        """facts, columns: numbers of facts and of columns of node features."""
        self._facts = stored.linear(f"{NEW_SCORE}facts", facts, NEW_HIDDEN)
        weights = {
            name: np.ascontiguousarray(
                stored.float32(f"{NEW_SCORE}{name}.weight", NEW_HIDDEN, inputs).T
            )
            for name, inputs in (("match", 1), ("near", columns), ("src", columns))
            + (("dst", columns), ("age", 1))
        }
        self._match_H = np.float32(MATCH_SCALE) * weights["match"][0]
        self._near_DH, self._src_DH, self._dst_DH = (weights[n] for n in ("near", "src", "dst"))
        self._age_1H = weights["age"]
        self._hidden = stored.linear(f"{NEW_SCORE}hidden", NEW_HIDDEN, NEW_HIDDEN)
        self._out = stored.linear(f"{NEW_SCORE}out", NEW_HIDDEN, 1)

    def vectors(
        self, near_UD: Float32, count_U: Float32, own_UD: Float32, age_U: Float32
    ) -> tuple[Float32, Float32]:
        mean_UD = near_UD / np.maximum(count_U, 1)[:, None]
        src_UH = mean_UD @ self._near_DH + own_UD @ self._src_DH
        dst_UH = own_UD @ self._dst_DH + (age_U[:, None] - np.float32(AGE_SHIFT)) @ self._age_1H
        has_row_U1 = (age_U[:, None] >= 0).astype(np.float32)
        one_U1 = np.ones_like(has_row_U1)
        return np.concatenate([src_UH, one_U1], 1), np.concatenate([dst_UH, has_row_U1], 1)

    def __call__(
        self, facts_RF: Float32, match_R: Float32, src_RH: Float32, dst_RH: Float32
    ) -> Float32:
        """The scores: float32[R]. facts_RF: standardised."""
        hidden_RH = self._facts(facts_RF)
        hidden_RH += match_R[:, None] * self._match_H
        hidden_RH += src_RH[:, :-1] + dst_RH[:, :-1]
        np.maximum(hidden_RH, 0, out=hidden_RH)
        hidden_RH = self._hidden(hidden_RH)
        np.maximum(hidden_RH, 0, out=hidden_RH)
        out: Float32 = self._out(hidden_RH)[:, 0] * (src_RH[:, -1] * dst_RH[:, -1])
        return out

"""The inputs of a model for predictions of labels, in numpy, for torch and numpy models alike."""

from dataclasses import dataclass

import numpy as np

from streamd.events import Float32, Int64
from streamd.graph.live import LiveGraph
from streamd.graph.neighborhood import Neighborhood, SamplingPlan, sample_neighborhood


@dataclass(frozen=True, slots=True)
class LabelRows:
    """The inputs of U distinct nodes. around: their neighborhoods. facts_UF: float32[U, F], facts
    of the pair of the node and itself, of which age, degree and popularity have information.
    history_UT: float32[U, T], the mean of its last labels."""

    around: Neighborhood
    facts_UF: Float32
    history_UT: Float32


def label_rows(
    live: LiveGraph,
    plan: SamplingPlan,
    nodes_U: Int64,
    set_U: Int64,
    before_event: int,
    query_us: int,
) -> LabelRows:
    """Make the inputs: neighborhoods in the events before `before_event`, facts in their present
    state, labels up to `query_us` (microseconds).

    nodes_U: int64[U]. set_U: int64[U], numbers of their sets, which the log does not have for a
    node without events.
    """
    around = sample_neighborhood(
        live.graph, live.log.columns, live.features, nodes_U, before_event, query_us, plan
    )

    # A label has no candidates, so use the facts of the pair of the node and itself.
    after = np.full(len(nodes_U), query_us + 1)
    facts = live.facts.compute(nodes_U, after, nodes_U[:, None], np.full(len(nodes_U), -1))[:, 0]
    return LabelRows(around, facts, live.labels.means(nodes_U, set_U, query_us))

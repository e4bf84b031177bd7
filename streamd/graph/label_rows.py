"""The model's inputs for predicting labels of nodes, in numpy; torch and numpy models read the
same."""

from dataclasses import dataclass

import numpy as np

from streamd.events import Float32, Int64
from streamd.graph.live import LiveGraph
from streamd.graph.neighborhood import Neighborhood, SamplingPlan, sample_neighborhood


@dataclass(frozen=True, slots=True)
class LabelRows:
    """U distinct nodes. around: their neighborhoods. facts_UF: float32, facts of each node as its
    own candidate, of which age, degree and popularity carry information. history_UT: float32, the
    mean of its last labels."""

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
    """Neighborhoods before event `before_event`, facts in their present state, labels up to
    `query_us` (microseconds). set_U: int64[U], numbers of the nodes' sets; an argument because the
    log has no set for a node without events."""
    around = sample_neighborhood(
        live.graph, live.log.columns, live.features, nodes_U, before_event, query_us, plan
    )

    # A label has no candidates: take the facts of the node as its own candidate.
    after = np.full(len(nodes_U), query_us + 1)
    facts = live.facts.compute(nodes_U, after, nodes_U[:, None], np.full(len(nodes_U), -1))[:, 0]
    return LabelRows(around, facts, live.labels.means(nodes_U, set_U, query_us))

"""What a node's labels are predicted from, as the graph has it: torch and numpy read it alike."""

from dataclasses import dataclass

import numpy as np

from streamd.events import Float32, Int64
from streamd.graph.live import LiveGraph
from streamd.graph.neighborhood import Neighborhood, SamplingPlan, sample_neighborhood


@dataclass(frozen=True, slots=True)
class LabelRows:
    """U distinct nodes. around: their neighbourhoods; facts_UF: float32, each node's facts about
    itself, of which its age, degree and popularity say something; history_UT: float32, the mean of
    its last labels before."""

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
    """Neighbourhoods as of an edge, facts as of now, labels up to `query_us`. set_U: the nodes'
    sets, which the log does not say of a node that it lacks."""
    around = sample_neighborhood(
        live.graph, live.log.columns, live.features, nodes_U, before_event, query_us, plan
    )

    # A label has no candidates: only the facts about its node, as its own candidate.
    after = np.full(len(nodes_U), query_us + 1)
    facts = live.facts.compute(nodes_U, after, nodes_U[:, None], np.full(len(nodes_U), -1))[:, 0]
    return LabelRows(around, facts, live.labels.means(nodes_U, set_U, query_us))

"""The log as a live graph: time-indexed blocks, exact sampling, and facts about pairs. Owned by one thread per role."""

from streamd.graph.blocks import BlockGraph
from streamd.graph.draws import Draw, Neighbors, NeighborSampler
from streamd.graph.facts import NUM_FACTS, PairFacts
from streamd.graph.sampler import Layer, TemporalSampler

__all__ = ["NUM_FACTS", "BlockGraph", "Draw", "Layer", "NeighborSampler", "Neighbors", "PairFacts", "TemporalSampler"]

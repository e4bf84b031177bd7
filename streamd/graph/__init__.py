"""The log as a graph in memory: time-indexed blocks, exact sampling, and facts about pairs. Owner:
one thread per role."""

from streamd.graph.blocks.block_store import BlockGraph
from streamd.graph.blocks.draws import Draw, Neighbors, NeighborSampler
from streamd.graph.facts.columns import NUM_FACTS, FactColumn
from streamd.graph.facts.pair_facts import PairFacts
from streamd.graph.sampler import Layer, TemporalSampler

__all__ = [
    "NUM_FACTS",
    "BlockGraph",
    "Draw",
    "FactColumn",
    "Layer",
    "NeighborSampler",
    "Neighbors",
    "PairFacts",
    "TemporalSampler",
]

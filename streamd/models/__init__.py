"""Plain nn.Modules without IO: pair facts, memory, attention, and what carries memory over the log.

Shape suffixes: E events, C candidates, F facts, U roots, K neighbours, M distinct nodes, P nodes
with a message, D width of an embedding, T width of the time encoding.
"""

from streamd.models.inputs import LinkInputs
from streamd.models.link import LinkModel, build_model, link_loss, sampling_of
from streamd.models.memory import EdgeRows, Memory
from streamd.models.restored import restored

__all__ = [
    "EdgeRows",
    "LinkInputs",
    "LinkModel",
    "Memory",
    "build_model",
    "link_loss",
    "restored",
    "sampling_of",
]

"""Plain nn.Modules without IO: pair facts, memory, attention, and what carries memory over the log.

Shape suffixes: E events, C candidates, F facts, U roots, K neighbours, M distinct nodes, P nodes
with a message, D width of an embedding, T width of the time encoding.
"""

from streamd.models.architectures import ARCHITECTURES, Architecture, architecture_of
from streamd.models.inputs import LinkInputs, sampled_inputs
from streamd.models.link import LinkModel, build_model, link_loss
from streamd.models.memory import EdgeRows, Memory
from streamd.models.restored import restored

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "EdgeRows",
    "LinkInputs",
    "LinkModel",
    "Memory",
    "architecture_of",
    "build_model",
    "link_loss",
    "restored",
    "sampled_inputs",
]

"""Models and their memory. The only I/O is that of the files of memory and of versions.

Training needs torch, while a server may answer with numpy alone. So names that need torch are
imported at their first use.

Shape suffixes: E events, C candidates, F facts, U roots, K neighbors, M distinct nodes, P nodes
with a pending message, D width of an embedding, T width of the time encoding.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamd.models.architectures import (
    ARCHITECTURES,
    Architecture,
    ModelPlugin,
    architecture_of,
    hops,
    windows_of_time,
)
from streamd.models.memory.edge_rows import EdgeRows
from streamd.models.memory.memory import Memory

if TYPE_CHECKING:
    from streamd.models.inputs import LinkInputs, sampled_inputs
    from streamd.models.link import LinkModel, build_model, link_loss

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "EdgeRows",
    "LinkInputs",
    "LinkModel",
    "Memory",
    "ModelPlugin",
    "architecture_of",
    "build_model",
    "hops",
    "link_loss",
    "sampled_inputs",
    "windows_of_time",
]

_IN_TORCH = {"LinkInputs": "inputs", "sampled_inputs": "inputs"} | dict.fromkeys(
    ("LinkModel", "build_model", "link_loss"), "link"
)
"""Name that needs torch -> the module that defines it."""


def __getattr__(name: str) -> Any:
    if name not in _IN_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_IN_TORCH[name]}"), name)

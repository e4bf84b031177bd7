"""Costs that must not grow with the number of nodes or the length of the log: `python -m tests.benchmarks growth`.

Each part measures one cost at several sizes, in processes of its own where it measures memory. `STREAMD_GROWTH` names the parts
to run, comma-separated; all without it.
"""

import importlib
import os
import pkgutil

from tests.benchmarks.measure import Row


def run() -> list[Row]:
    """The rows of all parts: each module of this package has a `run` of its own."""
    parts = [m.name for m in pkgutil.iter_modules(__path__)]
    chosen = os.environ.get("STREAMD_GROWTH", "")
    return [row for name in parts if not chosen or name in chosen.split(",")
            for row in importlib.import_module(f"{__name__}.{name}").run()]

"""Costs that must not grow with the number of nodes or the length of the log: `python -m tests.benchmarks growth`.

Each module of this package measures one cost at several sizes, in processes of its own where it measures memory; `growth-deletes` runs
one of them alone.
"""

import importlib
import pkgutil
from functools import partial

from tests.benchmarks.measure import Row


def rows_of(module: str) -> list[Row]:
    """Imported as it runs, since modules start themselves as processes of their own."""
    return importlib.import_module(f"{__name__}.{module}").run()


PARTS = {f"growth-{m.name.replace('_', '-')}": partial(rows_of, m.name) for m in pkgutil.iter_modules(__path__)}

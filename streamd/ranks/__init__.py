"""Ranks: processes that train together, the nodes that each owns, and the exchange of rows between
them.

Every rank reads the same log and runs the same trainer. Data of nodes is divided by owner,
computation by events.
"""

from streamd.ranks.group import ALONE, Ranks
from streamd.ranks.process_group import ProcessGroup

__all__ = ["ALONE", "ProcessGroup", "Ranks"]

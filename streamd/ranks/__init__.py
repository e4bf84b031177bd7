"""Processes that learn together: who they are, what they own, and how they exchange rows.

Every rank tails the same log and runs the same trainer; what it holds of nodes is divided by owner,
and what it computes by events.
"""

from streamd.ranks.group import ALONE, Ranks
from streamd.ranks.process_group import Lane

__all__ = ["ALONE", "Lane", "Ranks"]

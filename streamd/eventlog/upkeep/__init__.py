"""Upkeep of the log: leases, retention, compaction, pruning and verification."""

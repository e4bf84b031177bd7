"""The registry of model versions: immutable folders, a journal of who made which one champion, and
the gate that a new one must pass."""

from streamd.registry.registry import Registry

__all__ = ["Registry"]

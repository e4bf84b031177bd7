"""The registry of model versions: immutable folders, a journal of promotions and rollbacks, and the
gate that a new version must pass."""

from streamd.registry.registry import Registry

__all__ = ["Registry"]

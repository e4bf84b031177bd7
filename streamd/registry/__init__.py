"""Weights to versions: immutable folders, a journal of who made what champion, and the gate before
it."""

from streamd.registry.registry import Registry

__all__ = ["Registry"]

"""Unigraph tables: reading, writing and printing."""

"""Backups of a data directory in any file system that fsspec knows, and their way back.

Objects are named by their content; a manifest, written last, names those that make one state."""

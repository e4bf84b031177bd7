"""Backs up a data directory to any file system of fsspec, and restores it.

Objects are named by a hash of their content. A manifest, written last, lists the objects of one
state."""

"""Versions with fixed weights for answering, in numpy or in torch."""

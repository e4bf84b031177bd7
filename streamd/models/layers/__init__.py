"""The layers of each architecture, in torch."""

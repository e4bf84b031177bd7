"""streamd keeps a temporal graph model up to date with a live event stream."""

__version__ = "0.2.0.dev0"

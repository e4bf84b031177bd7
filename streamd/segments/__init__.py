"""Events to TGUF files and the journal: one writer, any number of readers that tail it."""

from streamd.segments.tguf import TGUFFile, TGUFSchema, TGUFWriter, open_tguf

__all__ = ["TGUFFile", "TGUFSchema", "TGUFWriter", "open_tguf"]

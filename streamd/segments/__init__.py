"""Events to TGUF files and the journal: one writer, any number of readers that tail it."""

from streamd.segments.format import TGUFSchema
from streamd.segments.tguf import TGUFFile, open_tguf
from streamd.segments.writer import TGUFWriter

__all__ = ["TGUFFile", "TGUFSchema", "TGUFWriter", "open_tguf"]

"""The TGUF file format: header, reader and writer."""

from streamd.eventlog.tguf.format import TGUFSchema
from streamd.eventlog.tguf.reader import TGUFFile, open_tguf
from streamd.eventlog.tguf.writer import TGUFWriter

__all__ = ["TGUFFile", "TGUFSchema", "TGUFWriter", "open_tguf"]

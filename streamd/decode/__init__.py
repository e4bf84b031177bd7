"""Decodes bytes to events, for ingest, for events sent to the server by REST, and for imports."""

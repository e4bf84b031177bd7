"""Versions to answers: one engine owns graph, facts and memory; FastAPI asks it, on the same
thread."""

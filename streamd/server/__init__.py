"""Versions to answers: one engine thread owns graph, facts and memory; FastAPI asks it."""

"""The server answers requests by the version that serves.

One engine owns graph, facts and memory; the FastAPI application calls it in the same thread.
"""

"""The server: it answers requests with the champion, or with a rule before the first version.

One engine owns graph, facts and memory. The FastAPI application calls it in the same thread.
"""

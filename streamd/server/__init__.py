"""The server turns versions into answers.

One engine owns graph, facts and memory. FastAPI asks it, on the same thread.
"""

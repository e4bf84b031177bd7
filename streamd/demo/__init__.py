"""The demo: a broker, a real month of events, and a table of scores at the end.

Only the command line imports it.
"""

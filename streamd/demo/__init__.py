"""The demo: a broker, a month of real events, and a table of scores at the end.

Only the command line imports it.
"""

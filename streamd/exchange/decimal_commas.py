"""The form of numbers with a decimal comma, as in German."""

import re

COMMA = re.compile(r"[-+]?(\d{1,3}([. ']\d{3})+|\d+),\d+")
"""A number with a decimal comma, and perhaps a point, a space or an apostrophe for thousands."""

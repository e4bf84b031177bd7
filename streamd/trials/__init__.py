"""Trials: parts of the requests are answered by different arms, and their outcomes are compared."""

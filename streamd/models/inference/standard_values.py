"""Numbers that are part of what weights mean, in torch and in numpy alike."""

CLIP = 5.0
"""Standardised values beyond it say no more than that they are extreme."""
LEAST_SPREAD = 1e-6
"""A column that varies less is scaled to zero: else its noise would be scaled up."""
PAIR_HIDDEN = 64
"""Units of each of the two hidden layers of the network over pair facts."""
LABEL_HIDDEN = 64
"""Units of the hidden layer of a label head."""
LEAST_SHARE = 1e-3
"""Share that a class is taken to have had at least: its logarithm would have no bound."""

"""Constants that stored weights depend on, for torch and numpy alike."""

CLIP = 5.0
"""Bound of standardised values: beyond it, only their sign matters."""
LEAST_SPREAD = 1e-6
"""A column with less spread is scaled to zero: its noise would be scaled up otherwise."""
PAIR_HIDDEN = 64
"""Units of each of the two hidden layers of the network over pair facts."""
MATCH_HIDDEN = 32
"""Units of the hidden layer of the network over the match of features."""
MATCH_SCALE = 3.0
"""Factor of the match, a cosine: it then varies about as much as a standardised fact."""
NEW_HIDDEN = 32
"""Units of the hidden layers of the network that scores new destinations."""
AGE_SHIFT = 7.0
"""Taken off the age of a row of features, the log of a number of events: about its mean."""
LEAST_NORM = 1e-6
"""A sum of features with a smaller norm counts as zero."""
LABEL_HIDDEN = 64
"""Units of the hidden layer of a label head."""
LEAST_SHARE = 1e-3
"""Lower bound of a class's share, since the logarithm of 0 is infinite."""

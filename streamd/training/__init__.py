"""Windows to better weights: record, score, learn, replay, checkpoint. Knows no server and no
registry."""

"""The models topic: what is learned on one machine, published to all others."""

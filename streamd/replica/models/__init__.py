"""The models topic: the trainer publishes versions, moves and windows to all other machines."""

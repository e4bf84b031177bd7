"""A follower: it applies the changelog to a directory of its own."""

"""TGN's memory: its rows, their pages, and the files that store them."""

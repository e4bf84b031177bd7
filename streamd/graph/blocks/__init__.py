"""GNNFlow's block graph: adjacency in time-indexed blocks, and the kernels that sample it."""

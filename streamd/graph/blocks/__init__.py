"""GNNFlow's block graph: stores of adjacency in time-indexed blocks, and the kernels that sample them."""

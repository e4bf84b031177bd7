"""Sampling of subgraphs by a SamplingSpec."""

"""Sampling of subgraphs as a SamplingSpec says."""

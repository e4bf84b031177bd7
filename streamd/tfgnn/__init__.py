"""Reads and writes the formats of TensorFlow GNN without TensorFlow (docs/tfgnn.md)."""

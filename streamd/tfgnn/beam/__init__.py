"""Sampling as an Apache Beam pipeline."""

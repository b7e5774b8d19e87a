"""Measurements of a checkpoint: layers, similarity, retrieval."""

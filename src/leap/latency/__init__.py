"""Latency on a CPU and on a GPU, and what it costs."""

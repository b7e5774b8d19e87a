"""How a checkpoint is measured: layers, similarity, retrieval, latency, and the evidence they write."""

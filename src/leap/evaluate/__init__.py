"""How a checkpoint is measured: layers, similarity, retrieval."""

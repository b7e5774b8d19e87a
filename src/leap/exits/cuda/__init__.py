"""Early exit on a GPU: the fused kernel, CUDA graphs, and what they share."""

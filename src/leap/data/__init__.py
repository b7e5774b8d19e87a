"""Text from its sources to files: training sentences, scored pairs, retrieval collections, validation."""

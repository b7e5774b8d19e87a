"""From sources to sentences, scored pairs and retrieval collections."""

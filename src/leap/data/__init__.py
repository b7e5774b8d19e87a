"""Files and collections of text, read; and what `extract` wrote, read back."""

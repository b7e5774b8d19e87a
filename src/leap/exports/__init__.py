"""A checkpoint in the forms that other programs load, and its model card."""

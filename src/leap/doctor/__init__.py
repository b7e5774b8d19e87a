"""`leap doctor`: whether a model can exit early, on anybody's checkpoint with anybody's sentences."""

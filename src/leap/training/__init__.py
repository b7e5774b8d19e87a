"""Training a student: its text as tokens, its checkpoints, its loop."""

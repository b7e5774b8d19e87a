"""Training a student: its start, its loss, its teacher, its loop."""

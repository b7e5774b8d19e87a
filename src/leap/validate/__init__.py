"""Great Expectations on what was extracted."""

"""Studies: variants trained and measured for one table of the paper each, outside the main pipeline."""

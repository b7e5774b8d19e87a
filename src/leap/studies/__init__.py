"""Studies: variants trained and measured for one table of the paper each, beside the main pipeline."""

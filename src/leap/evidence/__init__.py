"""Evidence files, and the statistics on them: intervals, correlations, paired comparisons."""

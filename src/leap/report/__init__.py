"""The report: a summary of all evidence, its pictures, and the page."""

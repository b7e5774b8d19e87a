"""The gate: checks on the evidence and the verdict, pure functions of files."""

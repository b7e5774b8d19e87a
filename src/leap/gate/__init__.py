"""The gate: checks on the evidence, the verdict, and the registry that a passing model enters."""

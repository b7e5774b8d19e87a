"""The variants' colours, the same in the report and in MLflow."""

# Okabe and Ito's, which people with any kind of colour blindness can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

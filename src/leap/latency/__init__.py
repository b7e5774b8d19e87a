"""How long a model takes, on a CPU and on a GPU, and what that costs."""

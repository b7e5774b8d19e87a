"""The bounds of the paper's deployment checklist: the gate's three, for words and recommendations."""

# More sentences than this must leave before the last layer.
ENOUGH_EXITS = 0.5
# Mean cosine of the exited mixture to full depth.
NEAR = 0.94
# NN@10 of the exited mixture.
ENOUGH_NEIGHBOURS = 0.80

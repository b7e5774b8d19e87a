"""Early exit: the rules on pooled layers, and the encoder that stops at them."""

from leap.exits.encoder import LeapEncoder
from leap.exits.rules import ExitRule

__all__ = ["ExitRule", "LeapEncoder"]

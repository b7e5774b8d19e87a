"""Early exit: the rules on pooled layers, the policies, and the encoder that stops by them."""

from leap.exits.leap_encoder import LeapEncoder
from leap.exits.rules import ExitRule

__all__ = ["ExitRule", "LeapEncoder"]

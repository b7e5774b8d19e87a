"""Passwords that a URI may carry, struck out before it is shown."""

import re

_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")


def without_passwords(text: str) -> str:
    """Return a text in which every `scheme://user:password@host` reads `scheme://user:***@host`."""
    return _PASSWORD.sub(r"\1:***@", text)

"""Limits on one request to a served model; whoever serves it sets other limits in the server's environment."""

import os
from collections.abc import Sequence

from leap.core.errors import UserError

MAX_SENTENCES = ("LEAP_MAX_SENTENCES", 1024)
MAX_CHARACTERS = ("LEAP_MAX_CHARACTERS", 20_000)  # of a sentence
MAX_REQUEST_CHARACTERS = ("LEAP_MAX_REQUEST_CHARACTERS", 2_000_000)  # of all sentences


class RequestRefused(ValueError):  # noqa: N818 - it is the request's state that is named
    """A request that its caller can change: the message says how."""


def check_limits() -> None:
    """Read all limits once, so that a mistake shows when the server starts and not with the first request."""
    for limit in (MAX_SENTENCES, MAX_CHARACTERS, MAX_REQUEST_CHARACTERS):
        read_limit(limit)


def check_texts(texts: Sequence[object]) -> list[str]:
    """Return the texts; RequestRefused where they are not text within the limits."""
    most, longest, largest = map(read_limit, (MAX_SENTENCES, MAX_CHARACTERS, MAX_REQUEST_CHARACTERS))
    if len(texts) > most:
        raise RequestRefused(f"{len(texts)} sentences in one request: at most {most} are taken")
    checked = []
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise RequestRefused(f"sentence {number} is no text")
        if len(text) > longest:
            raise RequestRefused(f"sentence {number} has {len(text)} characters: at most {longest} are taken")
        checked.append(text)
    total = sum(map(len, checked))
    if total > largest:
        raise RequestRefused(f"{total} characters in one request: at most {largest} are taken")
    return checked


def read_limit(limit: tuple[str, int]) -> int:
    """Return a limit, the environment's or its default; UserError where it is no whole number above 0."""
    name, default = limit
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UserError(f"{name} is {text!r} in the environment: set a whole number above 0, or unset it")
    return int(text)

"""The error a user sees: what was expected, what was found, where, and the way out."""


class UserError(Exception):
    """A mistake or a missing input that the user can repair.

    The message is all that is shown: it names the input, says what is wrong and how to go on.
    `leap.core.stage.run` and the command line print it without a traceback and exit with code 1.
    """

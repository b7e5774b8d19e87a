"""The error a user sees: what was expected, what was found, where, and the way out."""


class UserError(Exception):
    """A mistake or a missing input that the user can repair.

    The message is all that is shown: it names the input, says what is wrong and how to go on.
    `leap.core.stage.run` and the command line print it without a traceback and exit with code 1.
    """


def missing_library(error: ModuleNotFoundError) -> str:
    """Say how to get a library that only some commands need; an error of our own modules is raised again."""
    module = (error.name or "").partition(".")[0]
    if module in ("", "leap"):
        raise error
    extra = {"onnx": "export", "onnxscript": "export", "onnxruntime": "bench", "pyspark": "bulk"}
    extra |= dict.fromkeys(("fastapi", "uvicorn", "starlette", "prometheus_client"), "serve")
    return f"{module} is missing: pip install 'leap-pipeline[{extra.get(module, 'pipeline')}]'"

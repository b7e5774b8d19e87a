"""Progress bars with an estimate, quiet where no person watches."""

import logging
import sys
from collections.abc import Iterable
from typing import Any

from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

__all__ = ["bar", "log_to_stderr", "logging_redirect_tqdm"]


def bar(items: Iterable[Any] | None = None, **options: Any) -> Any:
    """Show a tqdm bar on stderr: live on a terminal, a line every ten seconds in a log file."""
    options.setdefault("mininterval", 0.5 if sys.stderr.isatty() else 10)
    return tqdm(items, file=sys.stderr, dynamic_ncols=True, **options)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Log one line a message on stderr; other libraries only from warnings upwards."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr, force=True)
    logging.getLogger("leap").setLevel(level)

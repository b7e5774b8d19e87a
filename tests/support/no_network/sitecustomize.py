"""On PYTHONPATH of the pipeline's processes: no connection leaves this machine, whatever a library wants."""

import socket
from typing import Any

_connect = socket.socket.connect


def connect(self: socket.socket, address: Any) -> None:
    """Connects within this machine only."""
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"this test allows no network: connection to {address} refused")
    _connect(self, address)


socket.socket.connect = connect  # type: ignore[method-assign]

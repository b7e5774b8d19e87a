"""Runs a program whose clock jumps once: `jumping_clock.py SECONDS PROGRAM ARGUMENTS`.

After half a second everything in Python that tells the time of day (`time.time`, `time.time_ns`,
`datetime.now`, `datetime.utcnow`) is off by so many seconds; monotonic clocks are not.
"""

import datetime
import runpy
import sys
import time
from pathlib import Path
from typing import Any

_time, _time_ns = time.time, time.time_ns
_started = time.monotonic()
AFTER = 0.5


def jump(seconds: float) -> None:
    """Lets the clock jump half a second from now."""

    def off() -> float:
        return seconds if time.monotonic() - _started > AFTER else 0.0

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.datetime.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.now(datetime.UTC).replace(tzinfo=None)

    time.time = lambda: _time() + off()
    time.time_ns = lambda: _time_ns() + int(off() * 1e9)
    datetime.datetime = Jumping  # type: ignore[misc]


if __name__ == "__main__":
    jump(float(sys.argv[1]))
    program = sys.argv[2]
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(program).parent.resolve())
    runpy.run_path(program, run_name="__main__")

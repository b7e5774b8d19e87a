"""Runs a stage whose clock jumps once: `jumping_clock.py SECONDS STAGE ARGUMENTS`.

After half a second `time.time` and `time.time_ns` are off by so many seconds; monotonic clocks are not.
"""

import runpy
import sys
import time
from pathlib import Path

AFTER = 0.5
_time, _time_ns = time.time, time.time_ns
_started = time.monotonic()


def jump(seconds: float) -> None:
    """Lets the clock jump half a second from now."""

    def off() -> float:
        return seconds if time.monotonic() - _started > AFTER else 0.0

    time.time = lambda: _time() + off()
    time.time_ns = lambda: _time_ns() + int(off() * 1e9)


if __name__ == "__main__":
    jump(float(sys.argv[1]))
    program = sys.argv[2]
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(program).parent.resolve())
    runpy.run_path(program, run_name="__main__")

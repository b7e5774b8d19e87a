"""`dvc repro` killed at chosen moments, and what a project then holds."""

import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from temporary_repository import Repository

STARTED = re.compile(r"Running stage '([^']+)'")
# What DVC says where a kill came while it was writing a file of its own; docs/faults.md has the way out.
DAMAGED = re.compile(
    r"dvc\.lock'(,? is (invalid|not valid utf-8)| validation failed)"
    r"|Unable to read RWLock-file|RWLock-file .* format error"
)
POLL = 0.01


@dataclass(frozen=True)
class Span:
    """How long a stage took: its own process, and until the next stage began (DVC stores its outputs)."""

    process: float
    whole: float


@dataclass(frozen=True)
class Kill:
    """A kill that hit: the stage's item, seconds since its start, what died, and by which signal."""

    item: str
    after: float
    died: str
    by: int

    @property
    def stage(self) -> str:
        """The stage of dvc.yaml."""
        return self.item.partition("@")[0]


class Repro:
    """A `dvc repro` in a process group of its own, and the stages that it has begun."""

    def __init__(self, repository: Repository, log: Path) -> None:
        self._log, self.repository = log, repository
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                ["dvc", "repro"],
                cwd=repository.root,
                env=repository.environment(),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """All that it has said."""
        return self._log.read_text(errors="replace")

    def begun(self) -> Iterator[tuple[str, float]]:
        """(item, time) of each stage as it begins, until the process ends."""
        seen = 0
        while True:
            ended = self.process.poll() is not None
            items = STARTED.findall(self.output)
            for item in items[seen:]:
                yield item, time.monotonic()
            seen = len(items)
            if ended:
                return
            time.sleep(POLL)

    def stage_process(self) -> psutil.Process | None:
        """The stage's own process, while there is one."""
        with suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if any(part.startswith("stages/") for part in child.cmdline()[1:3]):
                        return child
        return None

    def kill_all(self) -> str:
        """Kills DVC and its stage together; says what lived until then."""
        died = "DVC and stage" if self.stage_process() is not None else "DVC"
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return died


def spans(repository: Repository, log: Path) -> dict[str, Span]:
    """Runs `dvc repro` undisturbed; returns how long each stage took."""
    repro = Repro(repository, log)
    starts: list[tuple[str, float]] = []
    ends: list[float] = []
    for item, at in repro.begun():
        starts.append((item, at))
        while repro.process.poll() is None and (child := repro.stage_process()) is None:
            time.sleep(POLL)
        if child is not None:
            with suppress(psutil.Error):
                child.wait()
        ends.append(time.monotonic())
    assert repro.process.returncode == 0, repro.output[-4000:]
    following = [at for _, at in starts[1:]] + [time.monotonic()]
    return {
        item: Span(end - at, following[i] - at)
        for i, ((item, at), end) in enumerate(zip(starts, ends, strict=True))
    }


def kill_at_random(
    repository: Repository, times: dict[str, Span], wanted: Counter[str], seed: int, alone: bool, logs: Path
) -> list[Kill]:
    """Kills one `dvc repro` after the other at random moments until every item was hit as often as wanted.

    Args:
        repository: a project that was not yet reproduced.
        times: of each item, from an undisturbed run.
        wanted: how often each item is to be hit.
        seed: of the moments.
        alone: whether only the stage's process is killed, and DVC lives on.
        logs: a folder for the outputs of the runs.
    """
    generator = random.Random(seed)
    kills: list[Kill] = []
    while missing := wanted - Counter(kill.item for kill in kills):
        repro = Repro(repository, logs / f"{len(list(logs.iterdir())):03d}.log")
        kill = _one_kill(repro, times, missing, generator, alone)
        if kill is not None:
            kills.append(kill)
        elif repro.process.returncode == 0:
            break  # an item that was faster than the moment drawn for it does not run again
    return kills


def _one_kill(
    repro: Repro, times: dict[str, Span], wanted: Counter[str], generator: random.Random, alone: bool
) -> Kill | None:
    for item, at in repro.begun():
        if not wanted[item]:
            continue
        # All but an item's last kill come early enough that it is not done and runs again.
        span = times[item].process if alone or wanted[item] > 1 else times[item].whole
        moment = at + generator.random() * span * (0.9 if alone or wanted[item] > 1 else 1.0)
        while time.monotonic() < moment and repro.process.poll() is None:
            time.sleep(POLL)
        after = time.monotonic() - at
        if repro.process.poll() is not None:
            break
        if not alone:
            died = repro.kill_all()
            # The next one may have begun meanwhile.
            return Kill(STARTED.findall(repro.output)[-1], after, died, -repro.process.returncode)
        child = repro.stage_process()
        if child is not None:
            child.send_signal(signal.SIGKILL)
            repro.process.wait()
            assert repro.process.returncode != 0, repro.output[-4000:]
            assert "exited with -9" in repro.output, repro.output[-4000:]
            return Kill(item, after, "stage", signal.SIGKILL)
    if repro.process.returncode != 0:
        _repair(repro)
    return None


def finish(repository: Repository, log: Path) -> None:
    """`dvc repro` to its end, as a user gets there whatever the last kill hit."""
    for _ in range(2):
        repro = Repro(repository, log)
        if repro.process.wait() == 0:
            return
        _repair(repro)
    raise AssertionError(f"`dvc repro` failed again after it was repaired:\n{repro.output[-4000:]}")


def _repair(repro: Repro) -> None:
    """Nothing but a damaged file of DVC's own may stop a `dvc repro` after a kill; take the way out."""
    assert DAMAGED.search(repro.output), f"`dvc repro` after a kill failed:\n{repro.output[-4000:]}"
    name = ".dvc/tmp/rwlock" if "RWLock" in repro.output else "dvc.lock"
    (repro.repository.root / name).unlink()


def table(kills: list[Kill]) -> str:
    """One line a kill, for a person."""
    rows = [
        f"{number:3d}  {kill.item:40s} {kill.after:6.2f} s  {kill.died} (signal {kill.by})"
        for number, kill in enumerate(kills, 1)
    ]
    by_stage = Counter(kill.stage for kill in kills)
    return "\n".join([*rows, ", ".join(f"{stage} {count}" for stage, count in by_stage.items())])

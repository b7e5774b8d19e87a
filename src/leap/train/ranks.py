"""The processes of one training, as torchrun starts them; one process is the special case.

Every process takes its share of each batch. Gradients are averaged by DistributedDataParallel, and the
contrastive term sees the vectors of all processes, so that n processes train like one on the joint batch.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn.functional import all_gather

from leap.core.errors import UserError


@dataclass(frozen=True)
class Ranks:
    """This process among the others. `words` is the gloo group for what the hosts tell each other."""

    rank: int = 0
    world: int = 1
    words: Any = None

    @property
    def first(self) -> bool:
        return self.rank == 0

    def device(self, device: torch.device) -> torch.device:
        """Return this process's own device: on a machine with several GPUs one each."""
        if self.world > 1 and device == torch.device("cuda"):
            return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        return device

    def gather(self, vectors: Tensor) -> Tensor:
        """Return all processes' vectors, [B / world, D] to [B, D], differentiable; in the order of the ranks."""
        if self.world == 1:
            return vectors
        gathered: Tensor = _gather(vectors)
        return gathered

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over the processes, on the CPU."""
        if self.world == 1:
            return values
        total = values.double()
        dist.all_reduce(total, group=self.words)
        return total / self.world

    def any(self, here: bool) -> bool:
        """Tell whether it is so in any process; all get the same answer, so that they stop at the same step."""
        if self.world == 1:
            return here
        said = torch.tensor(int(here))
        dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self.words)
        return bool(said)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _gather(vectors: Tensor) -> Tensor:
    """Not compiled: torch.compile does not look into this collective's backward."""
    return torch.cat(all_gather(vectors.contiguous()))  # type: ignore[no-untyped-call]


ALONE = Ranks()


def start_processes(processes: int) -> None:
    """Replace this program by torchrun with the same command, where several processes are to train.

    Returns only where there is one process, or where this is one of torchrun's already. Signals then reach
    torchrun.
    """
    if processes == 1 or "RANK" in os.environ:
        return
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, f"--nproc-per-node={processes}", *sys.argv]
    os.execv(sys.executable, command)  # nosec B606  # no shell is what is wanted


@contextmanager
def join_processes(device: torch.device) -> Iterator[Ranks]:
    """Join the processes that torchrun started, or yield this one alone.

    CUDA talks by NCCL, a CPU by gloo. Raises UserError where there are more processes than GPUs.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield ALONE
        return
    local = int(os.environ["LOCAL_RANK"])
    if device.type == "cuda":
        if local >= torch.cuda.device_count():
            raise UserError(
                f"train.processes: process {local + 1} of this machine has no GPU of its own, there are "
                f"{torch.cuda.device_count()}: lower train.processes, or torchrun's --nproc-per-node"
            )
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), world, dist.new_group(backend="gloo"))
    finally:
        dist.destroy_process_group()

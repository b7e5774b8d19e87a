"""Linear algebra that gives the same bits however many cores are free."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread of the CPU within the block.

    PyTorch's library divides large float64 products and factorisations among the cores that it finds, and then
    sums in another order.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""The base of all objectives: the projection to the teacher's width, and how they are called."""

from collections.abc import Callable

from torch import Tensor, nn

Gather = Callable[[Tensor], Tensor]


class Objective(nn.Module):
    """A loss of the student's pooled layers against the teacher's.

    One linear map from the student's width to the teacher's is shared by all layers and used in training
    only; cosines between the student's own layers are taken on its own vectors. The paper leaves the
    projection's place open; docs/paper.md says why here.

    captures: a call never waits for the device and takes no branch on a tensor's value, so that a whole training
        step can be captured in one CUDA graph: `progress` is then a 0-dim tensor on the device. Where it is False,
        the trainer runs steps kernel by kernel.
    """

    captures = True

    def __init__(self, layers: int, width: int, teacher_width: int, gather: Gather | None = None) -> None:
        """Prepare the projection.

        Args:
            layers: L_s.
            width: the student's D.
            teacher_width: D_t.
            gather: takes this process's vectors [B, D] to those of all processes [R B, D] for the terms that
                compare sentences with each other; by default there is one process. Every process then
                computes the same contrastive term of the joint batch, so where DDP averages gradients the
                backward of `gather` must sum what the processes send to a vector
                (`torch.distributed.nn.functional.all_gather` does).
        """
        super().__init__()
        self.layers = layers
        self.gather = gather or _alone
        self.projection = nn.Identity() if width == teacher_width else nn.Linear(width, teacher_width, bias=False)

    def maps(self) -> Tensor | None:
        """Return the trained exit heads, [L_s - 1, D, D] float32; None where the objective trains none."""
        return None

    def forward(
        self, pooled: Tensor, teacher: Tensor, stored: list[int], progress: Tensor | float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of a batch.

        Args:
            pooled: [L_s + 1, B, D], the student's pooled layers, index 0 the embedding layer.
            teacher: [S, B, D_t] float32, the stored teacher layers, the last being the teacher's last.
            stored: the numbers of those layers.
            progress: share of the training done, 0 to 1.

        Returns:
            The loss, and each computed term before its weight, detached; all float32 scalars.
        """
        raise NotImplementedError


def _alone(vectors: Tensor) -> Tensor:
    return vectors

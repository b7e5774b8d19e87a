"""Linear layers that compute few tokens from packed weights, on a CPU in float32.

For a dozen rows PyTorch's product arranges the whole weight matrix again in every call, which costs as much as
the product: with 12 layers of 384 a sentence of 14 tokens takes 1.3 times as long as from weights packed once
(docs/log). With more rows the usual product is as fast, and with small weights faster.
"""

import torch
from torch import Tensor, nn

# Rows of a product, that is tokens of a batch; and elements of a weight.
MOST_ROWS = 128
LEAST_SIZE = 2**17


class SmallBatchLinear(nn.Linear):
    """A linear layer with the weights of another, and a packed copy of them, made when first needed."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self._packed: Tensor | None = None
        self._packed_of: tuple[int, int] | None = None

    def forward(self, states: Tensor) -> Tensor:
        weight = self.weight
        if len(states) > MOST_ROWS or torch.is_grad_enabled() or states.dtype != torch.float32 or states.is_cuda:
            return super().forward(states)
        # Weights that were changed since, or moved, are packed again.
        now = weight.data_ptr(), weight._version
        if self._packed_of != now:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), MOST_ROWS)
            self._packed_of = now
        out: Tensor = torch.ops.mkldnn._linear_pointwise(states, self._packed, self.bias, "none", [], "")
        return out


def pack_for_small_batches(encoder: nn.Module) -> None:
    """Replace the linear layers below `encoder` in place, where this PyTorch has oneDNN's products."""
    has_products = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not has_products or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return
    for module in list(encoder.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear and child.weight.numel() >= LEAST_SIZE:
                setattr(module, name, SmallBatchLinear(child))

"""Linear layers in int8 for CPUs: 1.4 times faster at width 384, 2.7 at 768 (docs/log/2026-11-29.md).

Weights have a scale for each output channel, inputs one for each token, so a row stays independent of its
batch; PyTorch's own dynamic quantisation takes one scale for the whole batch and would break that.
"""

import warnings

import torch
from torch import Tensor, nn

from leap.core.errors import UserError

# FBGEMM adds pairs of products in 16 bits on CPUs without VNNI: inputs of 7 bits cannot overflow there.
INPUT_RANGE = 63
INPUT_ZERO = 64


class Int8Linear(nn.Module):
    """A linear layer with int8 weights, and its inputs rounded to 7 bits."""

    bias: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed_bytes = linear.weight.numel()
        self.register_buffer("bias", linear.bias.detach().clone())
        self._packed = _pack(linear.weight.detach())

    def forward(self, states: Tensor) -> Tensor:
        scales = states.abs().amax(1, keepdim=True).clamp_min_(1e-12)
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            states / scales, 1 / INPUT_RANGE, INPUT_ZERO, self._packed
        )
        return torch.addcmul(self.bias, product, scales)


def to_int8(encoder: nn.Module) -> None:
    """Replace the linear layers below `encoder` in place; it can no longer be trained, saved or moved.

    Raises:
        UserError: this PyTorch has no FBGEMM, as on ARM.
    """
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        raise UserError("int8 needs FBGEMM, which this build of PyTorch does not have: leave it out")
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        for module in list(encoder.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.Linear):
                    setattr(module, name, Int8Linear(child))
    finally:
        torch.backends.quantized.engine = before


def _pack(weight: Tensor) -> torch.ScriptObject:
    scales = weight.abs().amax(1).clamp_min(1e-12).double() / 127
    with warnings.catch_warnings():
        # pytorch#184982 will drop this constructor; the kernel has no other way in yet.
        warnings.simplefilter("ignore", UserWarning)
        rounded = torch.quantize_per_channel(
            weight, scales, torch.zeros(len(weight), dtype=torch.int64), axis=0, dtype=torch.qint8
        )
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(rounded, None)
    return packed

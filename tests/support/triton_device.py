"""Where tests run Triton's kernels: on a GPU, or with TRITON_INTERPRET=1 by its interpreter on a CPU."""

import os
from importlib.util import find_spec

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="needs a CUDA device, or Triton's interpreter"),
]

"""NN@10 of the shadow, by hand and by a reference implementation."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from leap.serve.shadow import BLOCK, CAPACITY, Reservoir


def reservoir(width: int = 8) -> Reservoir:
    return Reservoir(width, np.random.default_rng(3))


def slow(exited: torch.Tensor, full: torch.Tensor) -> list[float]:
    shares = []
    for row in range(len(full)):
        tops = []
        for vectors in (exited, full):
            cosines = F.cosine_similarity(vectors[row], vectors, dim=-1).tolist()
            others = sorted((-value, j) for j, value in enumerate(cosines) if j != row)
            tops.append({j for _, j in others[:10]})
        shares.append(len(tops[0] & tops[1]) / 10)
    return shares


def test_agreement_is_taken_within_blocks_of_128() -> None:
    torch.manual_seed(0)
    full = torch.randn(2 * BLOCK + 60, 8)
    exited = full + 0.8 * torch.randn_like(full)
    sample = reservoir()
    for start in range(0, len(full), 50):
        sample.add(exited[start : start + 50], full[start : start + 50])
    result = sample.agreement()
    blocks = (slice(0, BLOCK), slice(BLOCK, 2 * BLOCK))
    expected = [share for block in blocks for share in slow(exited[block], full[block])]
    assert result.n == 256
    assert result.mean == pytest.approx(np.mean(expected))
    assert result.failed == pytest.approx(np.mean(np.array(expected) < 0.5))
    assert 0.3 < np.mean(expected) < 0.9


def test_equal_vectors_agree_and_unrelated_ones_agree_by_chance() -> None:
    torch.manual_seed(0)
    full = torch.randn(CAPACITY, 8)
    same, other = reservoir(), reservoir()
    same.add(2 * full, full)
    other.add(torch.randn_like(full), full)
    assert (same.agreement().mean, same.agreement().failed) == (1.0, 0.0)
    by_chance = other.agreement().mean
    assert by_chance == pytest.approx(10 / (BLOCK - 1), abs=0.02)
    assert other.agreement().failed > 0.95


def test_less_than_a_block_says_nothing() -> None:
    sample = reservoir()
    sample.add(torch.ones(BLOCK - 1, 8), torch.ones(BLOCK - 1, 8))
    result = sample.agreement()
    assert (result.n, result.mean, result.failed) == (0, None, None)


def test_every_pair_of_a_long_window_is_as_likely_to_be_kept() -> None:
    counts = torch.zeros(3)
    for seed in range(30):
        sample = Reservoir(1, np.random.default_rng(seed))
        for part in range(3):
            sample.add(*(torch.full((CAPACITY, 1), float(part)),) * 2)
        counts += torch.bincount(sample._vectors[0, :, 0].long(), minlength=3)
        assert sample._vectors[0].equal(sample._vectors[1])
    # 30 x 512 draws of a third each: four standard deviations.
    assert (counts - 5120).abs().max() < 4 * (15360 * 2 / 9) ** 0.5

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leap.exits.search import Search, nearest


def brute_force(queries: torch.Tensor, documents: torch.Tensor, k: int) -> list[list[int]]:
    """All cosines in float64, sorted by Python: descending, the earlier document first."""
    results = []
    for query in queries.double():
        scores = []
        for document in documents.double():
            norms = float(query.norm() * document.norm())
            scores.append(round(float(query @ document) / norms if norms else 0.0, 9))
        order = sorted(range(len(documents)), key=lambda number: (-scores[number], number))
        results.append((order + [-1] * k)[:k])
    return results


@st.composite
def vectors(draw: st.DrawFn, low: int, high: int) -> torch.Tensor:
    # Few directions, so that ties are everywhere, zero vectors among them.
    coordinates = st.lists(st.integers(-1, 1), min_size=3, max_size=3)
    return torch.tensor(draw(st.lists(coordinates, min_size=low, max_size=high)), dtype=torch.float32)


@settings(deadline=None)
@given(
    queries=vectors(1, 6),
    documents=vectors(1, 25),
    k=st.integers(1, 8),
    query_block=st.integers(1, 7),
    document_block=st.integers(1, 26),
)
def test_equals_brute_force_with_ties_at_any_block_size(
    queries: torch.Tensor, documents: torch.Tensor, k: int, query_block: int, document_block: int
) -> None:
    result = nearest(queries, documents, k, query_block=query_block, document_block=document_block)
    assert result.tolist() == brute_force(queries, documents, k)


@pytest.mark.parametrize("document_block", [3, 50, 1000])
def test_equals_brute_force_on_vectors_without_ties(document_block: int) -> None:
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(9, 24, generator=generator)
    documents = torch.randn(200, 24, generator=generator)
    result = nearest(queries, documents, 10, query_block=4, document_block=document_block)
    assert result.tolist() == brute_force(queries, documents, 10)


def test_equal_directions_rank_by_place_whatever_their_length() -> None:
    documents = torch.tensor([[0.0, 1.0], [3.0, 3.0], [0.1, 0.1], [1.0, 0.0], [7.0, 7.0]])
    assert nearest(torch.tensor([[2.0, 2.0]]), documents, 5).tolist() == [[1, 2, 4, 0, 3]]


def test_a_document_is_left_out_for_its_own_query_only() -> None:
    documents = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    queries = documents[:2]
    result = nearest(queries, documents, 3, own=torch.tensor([0, -1]))
    assert result.tolist() == [[1, 2, -1], [1, 0, 2]]


def test_best_first_and_near_misses_kept_apart() -> None:
    # One part in ten million of the cosine is seen; float32 products would tie here.
    angles = np.array([0.002, 0.0021, 0.001])
    documents = torch.tensor(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    assert nearest(torch.tensor([[1.0, 0.0]], dtype=torch.float64), documents, 3).tolist() == [[2, 0, 1]]


def test_documents_that_come_a_block_at_a_time_in_any_order() -> None:
    generator = torch.Generator().manual_seed(2)
    # Few directions, so that ties are everywhere.
    queries, documents = (torch.randint(-1, 2, (rows, 3), generator=generator).float() for rows in (6, 40))
    own = torch.tensor([3, -1, 39, 0, -1, 7])
    search = Search(queries, 5, own, query_block=4)
    for places in torch.randperm(40, generator=generator).split(11):
        search.add(documents[places], places)
    assert search.best().equal(nearest(queries, documents, 5, own))

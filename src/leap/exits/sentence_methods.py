"""The methods of sentence-transformers' `SentenceTransformer` that follow from `encode`, for `LeapEncoder`."""

from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from leap.models.folder import ModelFolder
from leap.models.library_tokenizer import LibraryTokenizer
from leap.models.texts import checked_texts
from leap.models.tokenizer import SentenceTokenizer

SimilarityName = Literal["cosine", "dot", "euclidean", "manhattan"]
Vectors = Tensor | np.ndarray[Any, Any] | list[Tensor]


class SentenceMethods:
    """The methods of an encoder that follow from its `encode`; see the package reference on sbert.net."""

    folder: Path
    tokenizer: SentenceTokenizer | LibraryTokenizer
    truncate_dim: int | None
    encode: Callable[..., Any]

    @property
    def width(self) -> int:
        raise NotImplementedError

    def encode_query(self, inputs: str | Iterable[str], *arguments: Any, **options: Any) -> Any:
        """Encode what is searched with: the prompt named query, unless another one is given."""
        return self.encode(inputs, *arguments, input_type="query", **options)

    def encode_document(self, inputs: str | Iterable[str], *arguments: Any, **options: Any) -> Any:
        """Encode what is searched: the prompt named document, unless another one is given."""
        return self.encode(inputs, *arguments, input_type="document", **options)

    def embed_query(self, text: str) -> list[float]:
        """`encode_query` in the form of LangChain's interface `Embeddings`, for its vector stores."""
        vector: list[float] = self.encode_query(text).tolist()
        return vector

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """`encode_document` in the form of LangChain's interface."""
        vectors: list[list[float]] = self.encode_document(texts).tolist()
        return vectors

    def get_embedding_dimension(self) -> int:
        """Return the dimensions of the vectors that `encode` returns."""
        return self.width if self.truncate_dim is None else min(self.width, self.truncate_dim)

    def get_sentence_embedding_dimension(self) -> int:
        """Return `get_embedding_dimension` by its older name."""
        return self.get_embedding_dimension()

    def tokenize(self, inputs: str | Iterable[str]) -> dict[str, Tensor]:
        """Return token ids as `encode` sees them, without a prompt, special tokens included.

        Returns:
            input_ids and attention_mask, both [N, T] int64; rows shorter than T end in zeros.
        """
        rows = [torch.tensor(ids) for ids in self.tokenizer(checked_texts(inputs))]
        masks = [torch.ones_like(ids) for ids in rows]
        pad = torch.nn.utils.rnn.pad_sequence
        return {"input_ids": pad(rows, batch_first=True), "attention_mask": pad(masks, batch_first=True)}

    @cached_property
    def similarity_fn_name(self) -> SimilarityName:
        """How the model's vectors are compared, as its config_sentence_transformers.json says; else cosine.

        It can be set to cosine, dot, euclidean or manhattan.
        """
        named = ModelFolder.read(self.folder).sentence_config.get("similarity_fn_name")
        return _known(str(named)) if named in get_args(SimilarityName) else "cosine"

    def similarity(self, embeddings1: Vectors, embeddings2: Vectors) -> Tensor:
        """Return the similarity of every vector of one side to every vector of the other.

        Args:
            embeddings1: [N, D], or [D] for one.
            embeddings2: [M, D], or [D].

        Returns:
            [N, M] float32; distances are negative, so that more is always nearer.
        """
        one, two = _rows(embeddings1), _rows(embeddings2)
        name = _known(self.similarity_fn_name)
        if name == "cosine":
            return F.normalize(one, dim=-1) @ F.normalize(two, dim=-1).T
        if name == "dot":
            return one @ two.T
        return -torch.cdist(one, two, p=2.0 if name == "euclidean" else 1.0)

    def similarity_pairwise(self, embeddings1: Vectors, embeddings2: Vectors) -> Tensor:
        """Return the similarity of corresponding vectors, [N] float32; both [N, D]."""
        one, two = _rows(embeddings1), _rows(embeddings2)
        name = _known(self.similarity_fn_name)
        if name == "cosine":
            return F.cosine_similarity(one, two, dim=-1)
        if name == "dot":
            return (one * two).sum(-1)
        return -F.pairwise_distance(one, two, p=2.0 if name == "euclidean" else 1.0, eps=0.0)


def _rows(vectors: Vectors) -> Tensor:
    if isinstance(vectors, list):
        vectors = torch.stack([torch.as_tensor(each) for each in vectors])
    tensor = torch.as_tensor(vectors).float()
    return tensor[None] if tensor.dim() == 1 else tensor


def _known(name: str) -> SimilarityName:
    for known in get_args(SimilarityName):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"similarity_fn_name {name!r} is none of {', '.join(get_args(SimilarityName))}")

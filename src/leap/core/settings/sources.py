"""Where text, evaluation sets and models come from: a hub, a local path, an installed package."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from leap.core.settings.base import Block, FileName, InnerPath, Package, Repository, Revision, SafePath, Sha256

Packages = Annotated[list[Package], Field(min_length=1)]


class HubFiles(Block):
    """A data set of the Hugging Face Hub at a pinned commit, as `datasets.load_dataset` takes it."""

    kind: Literal["hub"]
    repo: Repository
    revision: Revision
    # The configuration; null: the default one.
    config: Annotated[str, Field(min_length=1)] | None = None
    split: Annotated[str, Field(min_length=1)] = "train"
    # Files or patterns instead of the repository's own configurations and splits.
    files: Annotated[list[InnerPath], Field(min_length=1)] | None = None
    # Read over the network each time, without a copy on the disk.
    streaming: bool = False

    @field_validator("files")
    @classmethod
    def _files_need_no_configuration(cls, files: list[str] | None, others: ValidationInfo) -> list[str] | None:
        if files and (others.data.get("config") or others.data.get("split", "train") != "train"):
            raise ValueError("give either files, or config and split")
        return files


class LocalFiles(Block):
    """A file, a pattern of files or an Arrow folder (`datasets`' save_to_disk) under `data.folder`."""

    kind: Literal["local"]
    path: InnerPath


class HubText(HubFiles):
    """Sentences in columns of hub files."""

    columns: Annotated[list[str], Field(min_length=1)]


class LocalText(LocalFiles):
    """Sentences in columns of local files; a txt file has one sentence a line in the column `text`."""

    columns: Annotated[list[str], Field(min_length=1)] = ["text"]


class PackageText(Block):
    """The sentences of the docstrings of installed Python packages, read as text, never imported."""

    kind: Literal["package"]
    packages: Packages


TextSource = Annotated[HubText | LocalText | PackageText, Field(discriminator="kind")]


class PairColumns(Block):
    """The columns of a set of scored sentence pairs."""

    sentence1: str = "sentence1"
    sentence2: str = "sentence2"
    score: str = "score"


class PairSetting(Block):
    """A set of sentence pairs: graded `similarity` (STS-B) or `duplicates` (QQP, 0/1)."""

    task: Literal["similarity", "duplicates"] = "similarity"
    columns: PairColumns = PairColumns()
    max_pairs: int | None = Field(default=None, ge=2)


class HubPairs(PairSetting, HubFiles):
    """Scored pairs from hub files."""


class LocalPairs(PairSetting, LocalFiles):
    """Scored pairs from local files."""


PairSource = Annotated[HubPairs | LocalPairs, Field(discriminator="kind")]


class RetrievalSetting(Block):
    """Scoring of a BEIR collection."""

    # BEIR leaves the query's own id out of the ranking where queries are documents (ArguAna, Quora).
    skip_own_id: bool = False


class HubCollection(RetrievalSetting):
    """A BEIR collection on the hub: parquet or jsonl corpus and queries, qrels of one split."""

    kind: Literal["hub"]
    repo: Repository
    revision: Revision
    corpus: InnerPath
    queries: InnerPath
    qrels: InnerPath


class LocalCollection(RetrievalSetting):
    """A folder in BEIR form under `data.folder`: corpus, queries and qrels as jsonl/tsv or parquet."""

    kind: Literal["local"]
    path: InnerPath
    split: FileName = "test"


class PackageCollection(RetrievalSetting):
    """Docstrings as a collection: query = summary line, document = the rest, relevant = same object."""

    kind: Literal["package"]
    packages: Packages
    queries: int = Field(ge=10)
    documents: int = Field(ge=10)

    @field_validator("documents")
    @classmethod
    def _documents_hold_the_queries(cls, documents: int, others: ValidationInfo) -> int:
        if documents < others.data.get("queries", documents):
            raise ValueError("documents must be at least queries: every query has one relevant document")
        return documents


RetrievalSource = Annotated[HubCollection | LocalCollection | PackageCollection, Field(discriminator="kind")]


class HubModel(Block):
    """A model on the hub at a pinned commit; only safetensors are read."""

    kind: Literal["hub"]
    repo: Repository
    revision: Revision
    sha256: Sha256 | None = None
    tokenizer_sha256: Sha256 | None = None


class LocalModel(Block):
    """A model folder on disk, as Hugging Face or sentence-transformers saves it."""

    kind: Literal["local"]
    path: SafePath
    sha256: Sha256 | None = None
    # Of tokenizer.json: another one of the same size would go unnoticed.
    tokenizer_sha256: Sha256 | None = None


class PackageModel(Block):
    """A model folder inside an installed package, read as data: the package is never imported."""

    kind: Literal["package"]
    package: Package
    sha256: Sha256
    tokenizer_sha256: Sha256 | None = None


ModelSource = Annotated[HubModel | LocalModel | PackageModel, Field(discriminator="kind")]

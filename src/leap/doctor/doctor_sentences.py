"""The sentences that a model is examined on: a file of the user's, or the bundled sample."""

import random
from dataclasses import dataclass
from pathlib import Path

from leap.core.errors import UserError
from leap.core.source_code import PACKAGE
from leap.data.cleaning import clean
from leap.data.tables import file_ending, file_rows

BUNDLED = PACKAGE / "resources" / "similarity" / "pairs.csv"
# More make no figure much surer and the examination long.
ENOUGH = 2000
# Neighbours and lengths need some.
FEWEST = 50


@dataclass(frozen=True)
class Sample:
    source: str
    sentences: list[str]


def sample(file: Path | None, column: str | None, most: int = ENOUGH, seed: int = 17) -> Sample:
    """Draw unique, clean sentences of a file, or of the bundled ones; a seeded choice of at most `most`.

    Args:
        file: txt (a sentence a line), parquet, csv, tsv or jsonl.
        column: of a table; `text` of a txt file and `sentence` of any other if None.

    Raises:
        UserError: the file or column is missing, or holds too few sentences.
    """
    if file is None:
        named = "sentence"
        rows = file_rows(BUNDLED, ("sentence1", "sentence2"))
        source = "the sentences that come with leap"
    elif not file.is_file():
        raise UserError(f"{file} does not exist: name a txt, parquet, csv, tsv or jsonl file of sentences")
    else:
        named = column or ("text" if file_ending(file) == ".txt" else "sentence")
        rows, source = file_rows(file, (named,)), str(file)
    texts = (clean(row.text(place, named)) for row in rows for place in range(len(row.values)))
    unique = [text for text in dict.fromkeys(texts) if text]
    if len(unique) < FEWEST:
        raise UserError(
            f"{source} holds {len(unique)} different sentences, at least {FEWEST} are needed to see "
            "neighbours: give more, a few hundred are best"
        )
    if len(unique) > most:
        unique = random.Random(seed).sample(unique, most)
    return Sample(source, unique)

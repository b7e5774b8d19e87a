"""From docstring markup to English sentences."""

import inspect

import pytest

from leap.data.cleaning import split_sentences
from leap.extract.prose import is_prose, paragraphs, plain


def prose(docstring: str) -> list[str]:
    return list(paragraphs(inspect.cleandoc(docstring)))


def test_numpy_sections_go_and_notes_stay() -> None:
    assert prose(
        """
        Compute the arithmetic mean
        along the given axis.

        Parameters
        ----------
        a : array_like
            Array of numbers whose mean is wanted.

        Returns
        -------
        m : ndarray
            The mean of the numbers.

        Notes
        -----
        The mean is the sum of the elements divided by their number.

        >>> mean([1, 2])
        1.5

        A multi-
        dimensional array is flattened first.

        See Also
        --------
        average : Weighted average of the numbers.
        """
    ) == [
        "Compute the arithmetic mean along the given axis.",
        "The mean is the sum of the elements divided by their number.",
        "A multi-dimensional array is flattened first.",
    ]


def test_google_sections_go_with_what_is_indented_below_them() -> None:
    assert prose(
        """
        Loads the model from a folder.

        Args:
            path (str): The folder
                that holds the model.

            strict: whether every key must be there.

        Returns:
            The loaded model.

        The folder may also be a link.

        Note:
            The weights are read only once.
        """
    ) == [
        "Loads the model from a folder.",
        "The folder may also be a link.",
        "The weights are read only once.",
    ]


def test_sphinx_fields_directives_code_and_tables_go() -> None:
    assert prose(
        """
        Returns a new connection.

        :param timeout: seconds to wait
            for an answer.
        :return: the connection.

        .. versionadded:: 1.2
            The keyword was not there before.

        .. note:: A connection is not safe to share.

        For example::

            connection = connect()
            connection.close()

        ```
        This is code in a fence.
        ```

        =====  =====
        name   value
        =====  =====

        - The first point is short.
        - The second point goes
          on in a second line.
        """
    ) == [
        "Returns a new connection.",
        "A connection is not safe to share.",
        "For example::",
        "The first point is short.",
        "The second point goes on in a second line.",
    ]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("Uses :class:`~torch.nn.Linear` and :func:`mean`.", "Uses Linear and mean."),
        ("See :ref:`the guide <user_guide>` or `a page <https://x.org>`_.", "See the guide or a page."),
        ("The ``axis`` of *all* the **arrays** in `a`.", "The axis of all the arrays in a."),
        ("An orm:  :class:`_orm.Session` is open .", "An orm: Session is open."),
        ("It follows the paper [1]_ closely.", "It follows the paper closely."),
        ("A [link](https://x.org/a_(b)) to it.", "A link to it."),
        ("Both 2 * 3 and a_b stay.", "Both 2 * 3 and a_b stay."),
    ],
)
def test_inline_markup_becomes_plain_text(markup: str, text: str) -> None:
    assert plain(markup) == text


def test_sentences_do_not_end_at_abbreviations() -> None:
    text = "Use a format, e.g. Parquet or CSV. It works for J. Smith et al. and others! Does it? Yes."
    assert split_sentences(text) == [
        "Use a format, e.g. Parquet or CSV.",
        "It works for J. Smith et al. and others!",
        "Does it?",
        "Yes.",
    ]


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("The mean of the values is returned.", True),
        ("If the list is empty, the function raises an error (see below).", True),
        ("the mean of the values is returned.", False),  # no capital
        ("The mean of the values is returned", False),  # no end
        ("Returns the mean.", False),  # too few words
        ("Numpy pandas scipy torch sympy matplotlib networkx.", False),  # no function words
        ("The x_1 = y_2 and foo.bar[0] of a_b.", False),  # code
        ("The tricks are described in, but they are not used here.", False),  # lost its citation
        ("The page is at https://example.org and may be read.", False),
        ("It goes to zero as \\lambda grows in the limit.", False),
        ("This is (not closed and so it is not kept.", False),
        ("This is for example:", False),
    ],
)
def test_only_english_sentences_are_prose(text: str, english: bool) -> None:
    assert is_prose(text) is english

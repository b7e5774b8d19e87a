"""From a docstring's markup to plain English sentences.

A docstring mixes prose with sections for parameters, doctests, code, tables and directives, in the styles of
NumPy, Google and Sphinx. `paragraphs` keeps the prose; `is_prose` tells an English sentence from what is left
of markup and code.
"""

import re
from collections.abc import Iterator

# Sections of reference material: their header and all up to the next header is dropped.
_REFERENCE = (
    "args|arguments|attributes|call arguments|citations?|default attributes|depends|example|examples|"
    "expected shape|inputs?|input shape|keyword args|keyword arguments|keyword parameters|keywords|members|"
    "methods|options|other parameters|outputs?|output shape|parameters?|params|properties|raises|receives|"
    "references?|returns?|see also|shape|signature|src|todo|type|usage|usage examples?|variables|warns|"
    "yields?"
)
_RULES = tuple("=-~^\"'`#*+")
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+])\1{2,}")
_HEADER = re.compile(rf"(?:{_REFERENCE})", re.IGNORECASE)
_GOOGLE = re.compile(rf"(?:{_REFERENCE})(?: \(.*\))?\s*::?", re.IGNORECASE)
# Headers of which only the word goes: what follows is prose.
_KEPT_HEADER = re.compile(r"(?:notes?|warnings?|important|tips?|caution|caveats?)\s*::?\s+", re.IGNORECASE)
_DIRECTIVE = re.compile(r"\.\.(?:\s+|$)(?:(?P<kept>note|warning|tip|important|caution|hint|attention)::)?")
_FIELD = re.compile(r":[\w *.,\[\]|-]+:(?:\s|$)|@\w+|\\\w+")
_DOCTEST = (">>>", "... ", "$ ", "In [", "Out[")
_TABLE = re.compile(r"[|+]|[=\-~]{2,}(?:\s|$)|.*\s\|\s")
_BULLET = re.compile(r"(?:[-*•+‣]|\(?(?:\d{1,2}|[a-zA-Z]|#)[.)])\s+")
_DEFINITION = re.compile(r"[*`\w.,\[\] ()'\"=|/-]{1,60}(?<!\s)\s*(?:\s:\s|\s--?\s|:\s+(?=[a-z`]))|\S+\s\(.*\)\s*:")


def paragraphs(docstring: str) -> Iterator[str]:
    """Yield the paragraphs of prose in a docstring (as `ast.get_docstring` gives it), each as one plain line."""
    lines = docstring.expandtabs().splitlines()
    prose: list[str] = []
    skip: int | None = None  # drop lines indented deeper than this
    section = False  # inside a reference section with an underlined header
    block = False  # inside a doctest or a table, which end at an empty line
    fenced = False
    for i, line in enumerate([*lines, ""]):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text.startswith(("```", "~~~")):
            fenced = not fenced
            text = ""
        if fenced:
            continue
        if text and skip is not None:
            if indent > skip:
                continue
            skip = None
        below = lines[i + 1].strip() if i + 1 < len(lines) else ""
        if below[:1] in _RULES and text and _UNDERLINE.fullmatch(below) and not _UNDERLINE.fullmatch(text):
            section = _HEADER.fullmatch(text.rstrip(":")) is not None
            text = ""
        elif section and not prose:
            continue
        if section or (text[:1] in _RULES and _UNDERLINE.fullmatch(text)):
            text = ""
        block = text != "" and (block or text.startswith(_DOCTEST) or _TABLE.match(text) is not None)
        directive = _DIRECTIVE.match(text)
        if block:
            text = ""
        elif (directive and not directive["kept"]) or _FIELD.match(text) or _GOOGLE.fullmatch(text):
            skip, text = indent, ""
        elif directive:
            text = text[directive.end() :]
        new = _KEPT_HEADER.match(text + " ")
        text = text[new.end() :] if new else text
        bullet = _BULLET.match(text)
        if prose and (not text or new or bullet or directive):
            yield from _join(prose)
            prose = []
        if bullet:
            text = text[bullet.end() :]
        if text and not prose and _DEFINITION.match(text):
            skip, text = indent, ""
        if text.endswith("::"):
            skip = indent
        if text:
            prose.append(text)


def _join(lines: list[str]) -> Iterator[str]:
    text = lines[0]
    for line in lines[1:]:
        # A word that was broken at its hyphen goes together again.
        text += line if re.search(r"\w-$", text) and line[:1].islower() else " " + line
    text = plain(text)
    if text:
        yield text


_INLINE = (
    (re.compile(r"!?\[([^\]]+)\]\((?:[^()]|\([^()]*\))*\)"), r"\1"),  # [text](url)
    (re.compile(r":[\w:+-]+:`~?([^`<]*?)\s*<[^`>]*>`"), r"\1"),  # :role:`text <target>`
    (re.compile(r":[\w:+-]+:`~[^`]*?([^`.]+)`"), r"\1"),  # :role:`~package.Name`
    (re.compile(r":[\w:+-]+:`[!.]?(?:_\w+\.)?([^`]*)`"), r"\1"),  # :role:`name`, SQLAlchemy's :role:`_orm.name`
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}"), r"\1"),  # `text <url>`_
    (re.compile(r"\s*\[(?:\d+|#\w*|\w*\d{2,4}\w*)\](?:_|(?=[\s.,;]|$))"), ""),  # [1]_
    (re.compile(r"``\s*([^`]+?)\s*``"), r"\1"),
    (re.compile(r"`~?\.?([^`]+)`_{0,2}"), r"\1"),
    (re.compile(r"(?<![\w*])\*{1,2}([^\s*](?:[^*]*[^\s*])?)\*{1,2}(?![\w*])"), r"\1"),  # *emphasis*
    (re.compile(r"(?<!\w)_([A-Za-z][^_]*[A-Za-z])_(?!\w)"), r"\1"),
    (re.compile(r"\b([A-Za-z]\w*[A-Za-z0-9])_(?=[\s.,;:)]|$)"), r"\1"),  # reference_
    (re.compile(r"<(/?[a-zA-Z][\w]*|https?://[^>]*)\s*/?>"), ""),
)
_MARKUP = re.compile(r"[`*_\[<]")
_LOOSE = re.compile(r"\s+([.,;:!?](?:\s|$))")


def plain(text: str) -> str:
    """Return text without the inline markup of reStructuredText and Markdown."""
    if _MARKUP.search(text):
        for pattern, replacement in _INLINE:
            text = pattern.sub(replacement, text)
    return " ".join(_LOOSE.sub(r"\1", text).split())


_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a an the this that these those it its is are was were be been being has have had do does will would
        can could may might must should not no of in on at by for from to into onto with without as if when
        where while which who whose how than then so because since until after before and or but nor each
        every all any both between over under per via you your we our they their there only other same such
        """,
    )
)
_WORD = re.compile(r"[a-z]+(?:['\u2019-][a-z]+)*")
_CODE = re.compile(r"[_=<>{}\\|$#~^@*`\[\]…]|::|\w\(|\w\.\w*[a-z]\w*\b|[a-z][A-Z]|//")
_LEFTOVERS = re.compile(
    r"\b(?:in|see|from|of|by|the|and|as|with)[,;.)](?:\s|$)|\\|https?:|www\.|\b(?:TODO|FIXME|XXX|NOTE)\b|>>>|\.\.\s|\s:\w|^\W|\(\)\s*\(|\s[.,;]\s|,,"
)


def is_prose(sentence: str) -> bool:
    """Return whether a sentence of a docstring reads as English.

    It starts with a capital, ends like a sentence, has 5 to 60 words of which at least a fifth are function
    words (the, of, with, ...), and almost none of which is code.
    """
    if not ("A" <= sentence[0] <= "Z") or sentence[-1] not in ".!?" or sentence.endswith(("..", " .", ":.")):
        return False
    words = sentence.split()
    if not 5 <= len(words) <= 60 or len(sentence) > 400:
        return False
    if sentence.count("(") != sentence.count(")") or sentence.count('"') % 2 or _LEFTOVERS.search(sentence):
        return False
    lower_words = _WORD.findall(sentence.lower())
    if 5 * sum(word in _FUNCTION_WORDS for word in lower_words) < len(words):
        return False
    if _CODE.search(sentence) and 10 * sum(_CODE.search(word) is not None for word in words) > len(words):
        return False
    return sum(map(len, lower_words)) >= 0.9 * sum(map(len, words)) - 3

"""Which code computed something: the hashes of this package's source files."""

from functools import cache
from pathlib import Path

import leap
from leap.core.files import sha256_of

PACKAGE = Path(leap.__file__).parent
# Python, and the kernels' own languages.
ENDINGS = (".py", ".cu", ".cuh", ".cpp", ".hpp", ".h")


@cache
def code_of(*patterns: str, package: Path = PACKAGE) -> dict[str, str]:
    """Return the sha256 of the source files that patterns such as `models/**/*` name, by path in the package."""
    files = sorted(file for pattern in patterns for file in package.glob(pattern) if file.suffix in ENDINGS)
    return {file.relative_to(package).as_posix(): sha256_of(file) for file in files}

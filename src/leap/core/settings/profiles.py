"""Composing params.yaml: the embedded profile, a profile's differences, and changes from the command line."""

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

from leap.core.errors import UserError
from leap.core.files import whole_file
from leap.core.settings import parse_settings

BASE = "embedded"


def compose(name: str, folder: Path = Path("profiles"), changes: Sequence[str] = ()) -> str:
    """Return the YAML of a profile: embedded.yaml, the profile's own file merged over it, then the changes.

    Files merge after RFC 7386: mappings merge, null removes a key, all else replaces; a mapping whose `kind`
    changes is replaced whole. Comments of embedded.yaml stay where their keys do.

    Args:
        name: of a file in `folder`, without the ending.
        folder: where the profiles lie.
        changes: `dotted.key=value`, the value in YAML, set as it stands, a mapping too; null takes a block out.

    Raises:
        UserError: there is no such profile, a change cannot be read, or the result has mistakes.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise UserError(f"profile {name!r}: expected the name of a file in {folder}, without its ending")
    settings = _read(folder / f"{BASE}.yaml", folder)
    if name != BASE:
        patch = _read(folder / f"{name}.yaml", folder)
        _merge(settings, patch)
        # What a profile says about itself at its top takes the place of what embedded.yaml says.
        settings.ca.comment = patch.ca.comment
    for change in changes:
        _set(settings, change)
    return _checked_text(settings, f"profile {name}" + (f" with {', '.join(changes)}" if changes else ""))


def switch(
    name: str,
    folder: Path = Path("profiles"),
    changes: Sequence[str] = (),
    target: Path = Path("params.yaml"),
    force: bool = False,
) -> None:
    """Write the settings of a profile to params.yaml, whole or not at all; arguments and errors as of `compose`.

    `force` replaces a file that holds what no profile has, too; else that is refused.
    """
    _replace(target, compose(name, folder, changes), folder, force)


def start_from(
    patch: Mapping[str, Any], origin: str, target: Path, folder: Path = Path("profiles"), force: bool = False
) -> None:
    """Write the embedded profile with changes, its comments kept, to params.yaml; errors as of `switch`.

    `patch` is laid over it as a profile's file is; `origin` is what it comes from, for errors.
    """
    settings, plain = _read(folder / f"{BASE}.yaml", folder), StringIO()
    YAML(typ="safe").dump(dict(patch), plain)
    _merge(settings, _yaml().load(plain.getvalue()))
    _replace(target, _checked_text(settings, origin), folder, force)


def _checked_text(settings: CommentedMap, origin: str) -> str:
    stream = StringIO()
    _yaml().dump(settings, stream)
    text = _space_blocks(stream.getvalue())
    parse_settings(YAML(typ="safe").load(text), origin)
    return text


def _replace(target: Path, text: str, folder: Path, force: bool) -> None:
    if not force and target.exists() and target.read_text(encoding="utf-8", errors="replace") != text:
        _check_unedited(target, folder)
    with whole_file(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _check_unedited(target: Path, folder: Path) -> None:
    text = target.read_text(encoding="utf-8", errors="replace")
    if not any(text == compose(file.stem, folder) for file in sorted(folder.glob("*.yaml"))):
        raise UserError(
            f"{target} holds settings that no profile in {folder} has: --force replaces them, "
            "--params FILE writes elsewhere"
        )


def _yaml() -> YAML:
    yaml = YAML()  # round trip: comments, order and flow style are kept
    yaml.width = 4096
    yaml.preserve_quotes = True
    yaml.representer.add_representer(
        type(None), lambda representer, _: representer.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    return yaml


def _space_blocks(text: str) -> str:
    """One empty line before the profile's name and before each block, wherever their keys came from."""
    dense = re.sub(r"\n\s*\n", "\n", text)
    return re.sub(r"\n(?=profile:|[a-z_]+:(?: +#.*)?\n)", "\n\n", dense)


def _read(path: Path, folder: Path) -> CommentedMap:
    try:
        content = _yaml().load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = sorted(file.stem for file in folder.glob("*.yaml"))
        raise UserError(f"{path} is missing: the profiles in {folder} are {', '.join(known) or 'none'}") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(content, CommentedMap):
        raise UserError(f"{path}: expected settings (keys with values), found {content!r}")
    return content


def _merge(base: CommentedMap, patch: CommentedMap) -> None:
    """`leap.core.settings.merge` in place, so that comments survive; a test holds the two together."""
    for key, value in patch.items():
        old = base.get(key)
        if value is None:
            base.pop(key, None)
        elif isinstance(value, CommentedMap) and isinstance(old, CommentedMap) and not _other_kind(old, value):
            _merge(old, value)
        else:
            base[key] = value
            comment = patch.ca.items.get(key)
            if comment and comment[2] and "#" in comment[2].value:
                base.ca.items[key] = comment


def _other_kind(old: CommentedMap, new: CommentedMap) -> bool:
    return "kind" in new and new["kind"] != old.get("kind")


def _set(settings: CommentedMap, change: str) -> None:
    dotted, equals, text = change.partition("=")
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"change {change!r}: expected key=value, for example train.epochs=2")
    try:
        value: Any = _yaml().load(text)
    except YAMLError as error:
        raise UserError(f"change {change!r}: the value is not valid YAML: {error}") from None
    block = settings
    for key in keys[:-1]:
        block = block.setdefault(key, CommentedMap())
        if not isinstance(block, CommentedMap):
            raise UserError(f"change {change!r}: {key} has no keys below it, it is {block!r}")
    if value is None and isinstance(block.get(keys[-1]), dict):
        del block[keys[-1]]  # a block is taken out, as a profile's null does; a plain value becomes null
    else:
        block[keys[-1]] = value

"""A model's named prompts, as sentence-transformers keeps them."""

import logging
from dataclasses import dataclass
from pathlib import Path

from leap.core.errors import UserError
from leap.models.folder import SENTENCE_CONFIG, ModelFolder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prompts:
    """Prompts by name, and the name of the one that is used where none is asked for."""

    named: dict[str, str]
    default: str | None

    @classmethod
    def load(cls, folder: Path, given: dict[str, str] | None, default: str | None) -> "Prompts":
        """Read the folder's prompts (config_sentence_transformers.json), under those that were given.

        Raises:
            UserError: the folder's file is not JSON.
            ValueError: the default is not among them.
        """
        path = folder / SENTENCE_CONFIG
        config = ModelFolder.read(folder).sentence_config
        own = config.get("prompts") or {}
        if not isinstance(own, dict):
            raise UserError(f"{path}: prompts {own!r} are no prompts by name: fetch the model again")
        for name, text in own.items():
            if not isinstance(text, str | None):
                raise UserError(f"{path}: prompt {name!r} is {text!r}, no text: fetch the model again")
        # sentence-transformers knows these two even where a model does not.
        named = {"query": "", "document": "", **own, **(given or {})}
        default = default or config.get("default_prompt_name")
        if default is not None and default not in named:
            raise ValueError(f"default_prompt_name {default!r} is none of the prompts {', '.join(named)}")
        return cls({name: text or "" for name, text in named.items()}, default)

    def text(self, prompt: str | None, prompt_name: str | None) -> str | None:
        """Return what is put before every sentence: the prompt itself, else the named one, else the default.

        Raises:
            ValueError: there is no prompt of this name.
        """
        if prompt is not None:
            if prompt_name is not None:
                log.warning("prompt and prompt_name are both given: prompt is used")
            return prompt
        name = self.default if prompt_name is None else prompt_name
        if name is None:
            return None
        if name not in self.named:
            raise ValueError(f"prompt_name {name!r} is none of the prompts {', '.join(self.named)}")
        return self.named[name]

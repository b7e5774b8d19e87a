"""A model folder's layout: sentence-transformers' modules, where the transformer lies, and its weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.files import sha256_of, sha256_of_json

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# What safetensors calls floating-point types wide enough to be weights themselves; buffers of positions are whole.
FLOATS = ("F64", "F32", "F16", "BF16")


class UnsupportedError(UserError):
    """The packed encoder does not compute such a model; transformers may."""


@dataclass(frozen=True)
class Module:
    """One line of modules.json.

    kind: the class's name, such as Pooling.
    path: its folder, relative to the model's.
    """

    kind: str
    path: str


@dataclass(frozen=True)
class ModelFolder:
    """A folder as Hugging Face or sentence-transformers saves it.

    modules: of modules.json; none for a plain Hugging Face folder.
    """

    root: Path
    modules: tuple[Module, ...]

    @classmethod
    def read(cls, root: Path) -> "ModelFolder":
        """Read modules.json where there is one; refuse one that is no list of modules."""
        path = root / "modules.json"
        if not path.is_file():
            return cls(root, ())
        try:
            modules = tuple(
                Module(str(module["type"]).rpartition(".")[2], str(module.get("path", "")))
                for module in read_json_file(path)
            )
        except (TypeError, KeyError, AttributeError):
            raise UserError(f"{path} is not a list of modules: fetch the model again") from None
        return cls(root, modules)

    @property
    def transformer(self) -> Path:
        """The folder of config.json, weights and tokenizer: the model's own, or the first module's."""
        return self.root / self.modules[0].path if self.modules else self.root

    @property
    def weights(self) -> tuple[Path, ...]:
        """Return the safetensors files, shards in order; refuse an index whose shard is missing."""
        single, index = self.transformer / WEIGHTS, self.transformer / INDEX
        if single.is_file():
            return (single,)
        if not index.is_file():
            return ()
        try:
            names = sorted(set(read_json_file(index)["weight_map"].values()))
        except (TypeError, KeyError, AttributeError):
            raise UserError(f"{index} has no weight_map: fetch the model again") from None
        lacking = [str(name) for name in names if not (self.transformer / str(name)).is_file()]
        if lacking:
            raise UserError(f"{index} names shards that are missing: {', '.join(lacking)}: fetch the model again")
        return tuple(self.transformer / str(name) for name in names)

    def check(self) -> None:
        """Refuse, by name, a folder that only looks like a plain model.

        config.json or the safetensors are missing, it holds an adapter or quantized weights, or modules.json names
        a folder that is not there.
        """
        config = self.transformer / "config.json"
        if not config.is_file():
            raise UserError(
                f"{self.transformer} has no config.json, so it is no model of Hugging Face: name a folder "
                "that has one"
            )
        self._check_no_adapter()
        self._check_modules()
        if not self.weights:
            raise UserError(
                f"{self.transformer} has no {WEIGHTS}, the one form of weights that is read. pytorch_model.bin is "
                "a pickle, which can run code; if you trust it, convert it once and name the new folder with "
                "`kind: local`: "
                'python -c "from transformers import AutoModel, AutoTokenizer as T; '
                "m = 'OLD FOLDER OR REPOSITORY'; AutoModel.from_pretrained(m).save_pretrained('NEW FOLDER'); "
                "T.from_pretrained(m).save_pretrained('NEW FOLDER')\""
            )
        content = read_json_file(config)
        if isinstance(content, dict) and content.get("quantization_config"):
            raise UserError(f"{config} has a quantization_config: {_DEQUANTIZE}")

    def _check_no_adapter(self) -> None:
        for folder in {self.root, self.transformer}:
            if (folder / "adapter_config.json").is_file():
                raise UserError(
                    f"{folder} holds a PEFT adapter (adapter_config.json), which changes the model's vectors: "
                    "merge it into its base model and save that, with the package peft: "
                    "PeftModel.from_pretrained(base, FOLDER).merge_and_unload().save_pretrained('NEW FOLDER')"
                )

    def _check_modules(self) -> None:
        for module in self.modules:
            folder = self.root / module.path
            if not folder.resolve().is_relative_to(self.root.resolve()) and not folder.is_relative_to(self.root):
                raise UserError(
                    f"{self.root}/modules.json: {module.path!r} lies outside the model's folder: fetch the "
                    "model again"
                )
            if module.kind == "Pooling" and not (folder / "config.json").is_file():
                raise UserError(
                    f"{self.root}/modules.json names the pooling folder {module.path!r}, but "
                    f"{folder}/config.json is missing, and how the model pools with it: fetch the model again"
                )


_DEQUANTIZE = (
    "its weights are quantized, and only float32, bfloat16 and float16 are read: fetch the model's unquantized "
    "weights, or convert them with transformers: AutoModel.from_pretrained(...).dequantize().save_pretrained(...)"
)


def hash_weights(folder: Path) -> str:
    """Return the sha256 of a model's weights: of model.safetensors, or of its shards' names and hashes."""
    files = ModelFolder.read(folder).weights or (folder / WEIGHTS,)
    if len(files) == 1:
        return sha256_of(files[0])
    return sha256_of_json({path.name: sha256_of(path) for path in files})


def check_types(path: Path, types: dict[str, str]) -> None:
    """Refuse a file whose numbers are not the weights themselves: of 8 bits, or whole numbers.

    `types` is each tensor's type as safetensors names it.
    """
    for name, kind in types.items():
        if kind not in FLOATS and name.rpartition(".")[2] not in ("position_ids", "token_type_ids"):
            raise UserError(f"{path}: {name} is of type {kind}: {_DEQUANTIZE}")


def read_json_file(path: Path) -> Any:
    """Read a file of the model as JSON; UserError where it is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}): fetch the model again") from None

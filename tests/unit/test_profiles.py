"""Profiles: embedded.yaml with differences merged over it, valid as a whole."""

import re
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from leap.core.errors import UserError
from leap.core.settings import Settings, merge, parse_settings, profiles
from leap.core.settings.profiles import compose, switch

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "profiles"


def settings(text: str) -> Settings:
    return parse_settings(YAML(typ="safe").load(text), "test")


def test_params_yaml_is_the_embedded_profile() -> None:
    embedded = compose("embedded", FOLDER)
    assert (ROOT / "params.yaml").read_text(encoding="utf-8") == embedded
    assert (FOLDER / "embedded.yaml").read_text(encoding="utf-8") == embedded


def test_the_local_profile() -> None:
    text = compose("local", FOLDER, ["data.folder=/my/data"])
    local = settings(text)
    assert local.data.folder == "/my/data"
    assert {source.kind for source in local.data.sources.values()} == {"local"}
    assert list(local.similarity) == [local.evaluation.primary_set] == ["stsb"]
    assert {name: source.skip_own_id for name, source in local.retrieval.items()} == {
        "scifact": False,
        "arguana": True,
    }
    assert local.variant("teacher").checkpoint == local.teacher
    assert not local.names_a_hub()
    # embedded.yaml's comments stay, and the profile speaks for itself at the top.
    assert "# of the sample" in text
    assert text.startswith("# The local profile")


def test_the_gpu_profile() -> None:
    gpu = settings(compose("gpu", FOLDER, ["data.folder=/my/data"]))
    assert gpu.data.passages is not None
    assert (gpu.data.passages.share, gpu.data.passages.sentences) == (0.04, (3, 16))
    assert gpu.train.max_length == gpu.student.max_length == 256  # so that every position is trained
    assert gpu.variant("fixed_depth").student.layers == 7
    assert gpu.variant("adaptive_layer").loss.kind == "adaptive_layer"
    assert not gpu.names_a_hub()


def test_the_paper_profile_is_the_paper() -> None:
    paper = settings(compose("paper", FOLDER))
    assert set(paper.data.sources) == {"snli", "multinli", "qqp", "mrpc", "xnli"}
    assert (paper.data.max_sentences, paper.train.epochs, paper.train.batch_size) == (1_500_000, 10, 64)
    assert (paper.train.learning_rate, paper.train.precision, paper.loss.layer_map) == (
        5e-5,
        "bf16",
        "uniform",
    )
    assert (paper.loss.alpha, paper.loss.beta, paper.loss.beta_student) == (0.3, 0.4, 0.7)
    assert (paper.loss.gamma, paper.loss.delta, paper.loss.epsilon, paper.loss.tau) == (0.05, 0.3, 0.2, 0.98)
    assert (paper.exit.threshold, paper.exit.min_layer, paper.exit.patience) == (0.95, 6, 1)
    assert (paper.student.layers, paper.student.width, paper.student.heads) == (12, 384, 12)
    assert paper.similarity["qqp"].task == "duplicates"
    assert paper.similarity["qqp"].max_pairs == 10_000
    assert set(paper.retrieval) == {"arguana", "scidocs", "nfcorpus", "fiqa", "scifact"}
    assert (paper.latency.warmup, paper.latency.iterations, paper.latency.precision) == (50, 200, "fp16")
    assert paper.names_a_hub()


def test_changes_are_set_as_they_stand() -> None:
    text = compose(
        "embedded",
        FOLDER,
        [
            "train.epochs=1",
            "teacher={kind: local, path: here}",
            "variants.mine.description=a variant of my own",
            "data.max_sentences=null",
        ],
    )
    changed = settings(text)
    assert changed.train.epochs == 1
    assert changed.teacher.kind == "local"
    assert changed.data.max_sentences is None
    assert changed.variants["mine"].description == "a variant of my own"
    assert re.search(r"max_sentences: null +# a seeded sample", text)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "none",
            "train.epochs=1",
            r"none.yaml is missing: the profiles in .* are embedded, gpu, local, paper",
        ),
        ("embedded", "train.epochs", "expected key=value"),
        ("embedded", "train..epochs=1", "expected key=value"),
        ("embedded", "train.epochs=[", "not valid YAML"),
        ("embedded", "train.epochs.more=1", "epochs has no keys below it"),
        (
            "embedded",
            "train.epocs=1",
            r"profile embedded with train.epocs=1 has 1 mistake.*\n.*train.epocs: unknown key",
        ),
        ("embedded", "train.epochs=0", "train.epochs: .*greater than or equal to 1"),
    ],
)
def test_mistakes_are_named(name: str, change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose(name, FOLDER, [change])


def test_switch_writes_the_file_or_leaves_it(tmp_path: Path) -> None:
    target = tmp_path / "params.yaml"
    switch("embedded", FOLDER, ["train.epochs=3"], target)
    written = target.read_text(encoding="utf-8")
    assert written == compose("embedded", FOLDER, ["train.epochs=3"])
    with pytest.raises(UserError):
        switch("embedded", FOLDER, ["train.epochs=many"], target)
    assert target.read_text(encoding="utf-8") == written


def test_a_profile_without_settings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "embedded.yaml").write_text("- a list\n", encoding="utf-8")
    with pytest.raises(UserError, match="expected settings"):
        compose("embedded", tmp_path)
    (tmp_path / "embedded.yaml").write_text("a: [\n", encoding="utf-8")
    with pytest.raises(UserError, match="not valid YAML"):
        compose("embedded", tmp_path)


LEAVES = st.one_of(
    st.none(), st.integers(0, 9), st.sampled_from(["x", "y"]), st.lists(st.integers(0, 3), max_size=2)
)
TREES = st.dictionaries(
    st.sampled_from(["a", "b", "kind"]),
    st.recursive(LEAVES, lambda inner: st.dictionaries(st.sampled_from(["a", "b", "kind"]), inner, max_size=3)),
    max_size=3,
)


def _round_trip(tree: dict[str, object]) -> object:
    text = StringIO()
    YAML(typ="safe").dump(tree, text)
    return profiles._yaml().load(text.getvalue())


@given(TREES, TREES)
def test_the_merge_that_keeps_comments_is_the_merge_of_the_settings(
    base: dict[str, object], patch: dict[str, object]
) -> None:
    if "kind" in patch and patch["kind"] != base.get("kind"):
        return  # the whole would be replaced, and settings have no kind at their top
    merged = _round_trip(base)
    profiles._merge(merged, _round_trip(patch))  # type: ignore[arg-type]
    assert merged == merge(base, patch)

"""A colleague's clone, and experiments: DVC's own ways to share and to try, and MLflow agrees with both."""

import os
import sqlite3
import sys
from pathlib import Path

import pytest
from temporary_repository import Repository

LOAD = (
    "import mlflow; uri = 'sqlite:///mlruns/mlflow.db'; "
    "mlflow.set_tracking_uri(uri); mlflow.set_registry_uri(uri); "
    "mlflow.pyfunc.load_model('models:/{}@champion')"
)


def registered(repository: Repository) -> str:
    """The name of the registered model."""
    database = sqlite3.connect(repository.root / "mlruns" / "mlflow.db")
    ((name,),) = database.execute("select name from registered_models").fetchall()
    return str(name)


def test_a_clone_pulls_loses_its_results_trains_nothing_and_has_a_champion(
    repository: Repository, tmp_path: Path
) -> None:
    repository.run("dvc", "remote", "add", "-d", "local", str(tmp_path / "remote"))
    repository.run("dvc", "push")
    repository.commit()
    clone = tmp_path / "clone"
    repository.run("git", "clone", "-q", str(repository.root), str(clone))
    other = Repository.at(clone, "embedded", ())
    other.run("dvc", "pull")
    assert (clone / "reports" / "report.html").is_file()
    other.run("rm", "-rf", "models", "verdicts", "reports", "metrics")
    ran = {stage.partition("@")[0] for stage in other.ran(other.run("dvc", "repro"))}
    # The teacher's cache is no output that is shared; it is made again, to the same bytes.
    assert ran <= {"cache_teacher", "promote"}
    assert registered(other) == registered(repository)
    other.run(sys.executable, "-c", LOAD.format(registered(other)))


@pytest.mark.skipif(os.environ.get("LEAP_SLOW") != "1", reason="two whole experiments: LEAP_SLOW=1 runs them")
def test_experiments_end_in_the_projects_store_and_promote_nothing(repository: Repository) -> None:
    name = registered(repository)

    def state() -> tuple[list[str], list[tuple[str, int]]]:
        database = sqlite3.connect(repository.root / "mlruns" / "mlflow.db")
        rates = database.execute("select value from params where key = 'train.learning_rate'").fetchall()
        aliases = database.execute("select alias, version from registered_model_aliases where name = ?", (name,))
        return [rate for (rate,) in rates], sorted(aliases.fetchall())

    _, before = state()
    repository.run("dvc", "exp", "run", "-S", "train.learning_rate=3e-5")
    repository.run("dvc", "exp", "run", "--temp", "-S", "train.learning_rate=4e-5")
    rates, after = state()
    assert [float(rate) for rate in rates].count(3e-5) >= 1
    assert [float(rate) for rate in rates].count(4e-5) >= 1
    assert after == before
    repository.run("git", "checkout", "-q", ".")

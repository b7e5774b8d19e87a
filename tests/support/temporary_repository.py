"""A temporary copy of the project, for tests that run the real pipeline."""

import contextlib
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from leap.core.settings.profiles import compose

PROJECT = Path(__file__).parents[2]
NO_NETWORK = Path(__file__).with_name("no_network")
TRACKED = (
    "src",
    "stages",
    "profiles",
    "reference",
    "mlruns/README.md",
    "dvc.yaml",
    "requirements.lock",
    ".dvc",
    ".dvcignore",
    ".gitignore",
)


# What a user's environment may hold and nothing that the pipeline writes or says may repeat.
MARK = "marked-secret"
SECRETS = {
    "MLFLOW_TRACKING_USERNAME": "user",
    "MLFLOW_TRACKING_PASSWORD": f"{MARK}-password",
    "MLFLOW_TRACKING_TOKEN": f"{MARK}-token",
    "MLFLOW_TRACKING_URI": f"http://user:{MARK}-uri@127.0.0.1:9",
    "HF_TOKEN": f"hf_{MARK}",
    "AWS_ACCESS_KEY_ID": f"{MARK}-id",
    "AWS_SECRET_ACCESS_KEY": f"{MARK}-key",
}


def files_with(mark: str, folder: Path) -> list[str]:
    """The files that hold a text, in whatever form they keep it plain."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [str(path.relative_to(folder)) for path in files if mark.encode() in path.read_bytes()]


class Repository:
    """A temporary copy of the project under git and DVC."""

    def __init__(self, root: Path, profile: str, changes: Sequence[str]) -> None:
        self.root, self._profile, self._changes = root, profile, tuple(changes)
        root.mkdir()
        for name in TRACKED:
            source = PROJECT / name
            if source.is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "cache", "tmp", "*.egg-info")
                shutil.copytree(source, root / name, ignore=ignore)
            else:
                (root / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(source, root / name)
        self.write()
        self.run("git", "init", "-q")
        self.run("git", "config", "user.email", "test@example.org")
        self.run("git", "config", "user.name", "test")
        self.run("git", "remote", "add", "origin", f"https://user:{MARK}-remote@example.org/project.git")
        self.commit()

    def write(self, *changes: str) -> None:
        """params.yaml: the profile with the repository's own changes and these."""
        text = compose(self._profile, PROJECT / "profiles", [*self._changes, *changes])
        (self.root / "params.yaml").write_text(text)

    def environment(self) -> dict[str, str]:
        """For its commands: its own code, and no network."""
        return (
            os.environ
            | SECRETS
            | {
                "PYTHONPATH": os.pathsep.join([str(self.root / "src"), str(NO_NETWORK)]),
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            }
        )

    @classmethod
    def at(cls, root: Path, profile: str, changes: Sequence[str]) -> "Repository":
        """A repository that is there already."""
        other = object.__new__(cls)
        other.root, other._profile, other._changes = root, profile, tuple(changes)
        return other

    def copy(self, root: Path) -> "Repository":
        """The same project in another place, whatever state it is in."""
        shutil.copytree(self.root, root, symlinks=True)
        return self.at(root, self._profile, self._changes)

    def run(self, *command: str, expect: int = 0) -> str:
        """A command's output, stdout and stderr together."""
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == expect, done.stdout[-4000:]
        assert MARK not in done.stdout
        return done.stdout

    def stage(self, name: str, *arguments: str, expect: int = 0) -> str:
        """The same for a stage, in this process: a new one would spend seconds on imports."""
        script, output = str(self.root / "stages" / f"{name}.py"), io.StringIO()
        with (
            contextlib.chdir(self.root),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
            mock.patch.object(sys, "argv", [script, *arguments]),
            mock.patch.dict(os.environ, SECRETS),
        ):
            try:
                runpy.run_path(script, run_name="__main__")
                code = 0
            except SystemExit as ended:
                code = int(ended.code or 0)
        assert code == expect, output.getvalue()[-4000:]
        assert MARK not in output.getvalue()
        return output.getvalue()

    def commit(self) -> None:
        """Commits everything."""
        self.run("git", "add", "-A")
        self.run("git", "commit", "-qm", "state")

    def changed(self) -> set[str]:
        """The stages that `dvc repro` would run."""
        status = json.loads(self.run("dvc", "status", "--json"))
        return {name.split(":")[-1] for name in status} - {"promote"}  # which is always run

    def ran(self, output: str) -> set[str]:
        """The stages that a repro ran."""
        return set(re.findall(r"Running stage '([^']+)'", output))

    def json(self, path: str) -> Any:
        """A result file."""
        return json.loads((self.root / path).read_text())

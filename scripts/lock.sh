#!/usr/bin/env bash
# Writes requirements.lock and requirements-dev.lock from pyproject.toml, in a fresh environment.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
pip="$folder/venv/bin/pip --disable-pip-version-check"
# The build of torch is the user's choice (see the Makefile), so its local version is not pinned.
freeze() { $pip freeze --exclude-editable --all | grep -viE '^(pip|leap-pipeline)\b' | sed 's/+cpu$//; s/+cu[0-9]*$//'; }
$pip install --quiet "${TORCH:-torch==2.13.0}"
$pip install --quiet -e ".[pipeline,embedded]"
freeze | grep -v '^torch==' > requirements.lock
$pip install --quiet -e ".[dev]"
freeze | grep -v '^torch==' | grep -vxFf requirements.lock > requirements-dev.lock

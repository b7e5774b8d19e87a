#!/usr/bin/env bash
# Writes the lock files from pyproject.toml, in a fresh environment:
#   requirements.lock, requirements-dev.lock   what is installed: today's newest versions
#   requirements-lowest.lock                   the lowest versions that pyproject.toml allows, for make test-lowest
# `tools/lock.sh lowest` writes only the last. UV_INDEX_URL and UV_EXTRA_INDEX_URL name another index to uv.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
pip="$folder/venv/bin/pip --disable-pip-version-check"

# The build of torch is the user's choice (see the Makefile), so neither it nor what only a build needs is pinned.
without_torch='^(torch|triton|nvidia-.*|cuda-.*)=='
lowest() {
  $pip install --quiet "$(grep '^uv==' requirements-dev.lock)"
  "$folder/venv/bin/uv" pip compile --quiet --resolution lowest-direct --python-version 3.11 --extra test \
    --no-header --no-annotate pyproject.toml | grep -vE "$without_torch|^leap-pipeline" > requirements-lowest.lock
}
if [ "${1:-}" = lowest ]; then
  lowest
  exit
fi
freeze() {
  $pip freeze --exclude-editable --all | grep -viE "^(pip|leap-pipeline)\b|$without_torch" | sed 's/+cpu$//; s/+cu[0-9]*$//'
}
$pip install --quiet "${TORCH:-torch==2.13.0}"
$pip install --quiet -e ".[pipeline,embedded]"
freeze > requirements.lock
$pip install --quiet -e ".[dev]"
freeze | grep -vxFf requirements.lock > requirements-dev.lock
lowest

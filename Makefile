# make help says what there is. Two commands do it all from a fresh clone: `make demo` and `make test`.

# The first of the supported versions that runs here (pyenv has a command for versions that do not).
PYTHON ?= $(firstword $(foreach version,3.11 3.12 3.13,$(if $(shell python$(version) -c 'print(1)' 2>&-),python$(version))) python3)
# The torch build to install. pip's default is right on a machine whose index serves the build you want; else:
#   make setup TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"     (or .../cu130)
TORCH ?= torch==2.13.0
# The same for make test-lowest; the index must have this version.
LOWEST_TORCH ?= torch==2.11.0
BIN := .venv/bin
# uv installs in a fifth of pip's time, but reads no pip.conf: where it cannot reach an index, pip tries.
# Bytecode is written when a module is first imported; writing all of it here would take a minute.
PIP = $(1)/bin/pip install --quiet --no-compile --disable-pip-version-check
UV = VIRTUAL_ENV=$(1) $(1)/bin/uv pip install --quiet
define INSTALL
$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { echo "error: $(PYTHON) is not Python 3.11 to 3.13: make PYTHON=/path/to/python3.11"; exit 1; }
$(PYTHON) -m venv $(1)
$(PIP) uv || true
$(UV) --no-deps -r $(2) || $(PIP) --no-deps -r $(2)
$(PIP) -c $(2) $(3)
$(PIP) --no-deps --no-build-isolation -e .
endef

# Each stage is its own process: without bytecode on disk every one compiles MLflow and PyTorch again, 7 seconds.
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(CURDIR)/$(BIN):$(PATH)
export DVC_NO_ANALYTICS := 1
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := 1

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev setup-lowest demo ui test test-lowest test-faults audit check fix bench docs gpu-run clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

setup: .venv/ready ## make the environment in .venv
setup-dev: .venv/ready-dev

.venv/ready: requirements.lock pyproject.toml
	@echo "installing the pinned environment into .venv (about a minute)"
	@$(call INSTALL,.venv,requirements.lock,$(TORCH))
	@touch $@

.venv/ready-dev: .venv/ready requirements-dev.lock
	$(call UV,.venv) --no-deps -r requirements-dev.lock || $(call PIP,.venv) --no-deps -r requirements-dev.lock
	@touch $@

setup-lowest: .venv-lowest/ready

.venv-lowest/ready: requirements-lowest.lock pyproject.toml
	@echo "installing the lowest versions that pyproject.toml allows into .venv-lowest (about a minute)"
	@$(call INSTALL,.venv-lowest,requirements-lowest.lock,$(LOWEST_TORCH))
	@touch $@

demo: setup ## run the whole pipeline on the embedded profile (9 minutes on 2 idle cores)
	dvc repro
	@leap summary
	@echo "the report: reports/report.html    the runs and models: make ui"

study-%: setup ## one study of params.yaml (study-ablation), then the report again; docs/studies.md
	python stages/study.py --study $*
	dvc repro --single-item --force report

ui: setup ## open MLflow on http://127.0.0.1:5000
	@leap track
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --workers 1 --host 127.0.0.1 \
	  --backend-store-uri sqlite:///mlruns/mlflow.db

test: setup-dev ## run all tests (those on real data need LEAP_DATA)
	OMP_NUM_THREADS=1 pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

test-lowest: export PATH := $(CURDIR)/.venv-lowest/bin:$(PATH)
test-lowest: setup-lowest ## run the unit tests with the lowest versions that pyproject.toml allows
	OMP_NUM_THREADS=1 pytest tests/unit --numprocesses auto --dist loadfile --no-loadscope-reorder

test-faults: setup-dev ## kills, full disks, lost servers, bad input (docs/faults.md; some fifteen minutes on 2 cores)
	OMP_NUM_THREADS=1 pytest tests/faults --numprocesses auto --dist loadfile

audit: setup-dev ## known vulnerabilities of the pinned packages, asked of PyPI; ID=... ignores one
	pip-audit --requirement requirements.lock --no-deps --disable-pip $(if $(ID),--ignore-vuln $(ID))

check: setup-dev ## lint, types, spelling, security
	ruff check .
	ruff format --check .
	mypy
	typos
	bandit --quiet --configfile pyproject.toml --recursive src tools stages
	python tools/readme_results.py --check

fix: setup-dev ## repair what a tool can repair
	ruff check --fix .
	ruff format .
	python tools/readme_results.py

bench: setup ## measure training and encoding on this machine, after make demo
	python tools/benchmark_training.py
	python tools/benchmark_encoding.py

docs: .venv-docs/ready ## the documentation as pages, in site/
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet

.venv-docs/ready: requirements-docs.lock
	$(PYTHON) -m venv .venv-docs
	$(call PIP,.venv-docs) --no-deps -r requirements-docs.lock
	@touch $@

gpu-run: ## run all stages but validate without DVC and MLflow (params.yaml: leap profile gpu; DEVICES=0,1)
	python3 tools/run_stages.py --only settings,extract,cache_teacher
	python3 tools/run_stages.py --only train,calibrate,diagnose,evaluate_sts,evaluate_retrieval --devices "$(DEVICES)"
	python3 tools/run_stages.py --only benchmark_latency,gate,report

clean: ## remove results and the environment, keep DVC's cache
	rm -rf .venv .venv-lowest .venv-docs site data students models evaluations verdicts metrics reports studies mlruns/artifacts mlruns/mlflow.db

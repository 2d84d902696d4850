# On a fresh machine (Python 3.11 or newer, nothing else):
#   make train ARGS="model.d_state=8"     set up, then train
#   make test                             set up, then test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: train dashboard test test-slow lint format docs bench

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Statewise needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e '.[dev,parity]' -c constraints.txt
	touch $@

train: $(VENV)/.installed
	$(BIN)/python train.py $(ARGS)

# TensorBoard on all runs, or on those of LOGDIR=outputs/2025-01-31/12-00-00 (a sweep, or one run).
LOGDIR ?= outputs
PORT ?= 6006
dashboard: $(VENV)/.installed
	@echo 'The charts in order: http://localhost:$(PORT)/#custom_scalars  the runs side by side: http://localhost:$(PORT)/#hparams'
	@$(BIN)/tensorboard --logdir '$(LOGDIR)' --port $(PORT) --window_title Statewise $(ARGS)

test: $(VENV)/.installed
	$(BIN)/python -m pytest -q -m "not slow" -n 2 --dist loadfile --nbmake tests notebooks $(ARGS)

test-slow: $(VENV)/.installed
	$(BIN)/python -m pytest -q -m slow $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Writes the chapter of docs/health.md on the findings from the rules.
docs: $(VENV)/.installed
	$(BIN)/python -m statewise.health.documentation docs/health.md

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/pip install -q -e '.[dev,bench]' -c constraints.txt
	touch $@

# Writes docs/benchmarks.md; with ARGS=--quick in a few minutes, with fewer sizes.
bench: $(VENV)/.bench
	$(BIN)/python benchmarks/all.py $(ARGS)

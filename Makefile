# `make train` on a fresh clone installs into .venv and runs; `make test` checks everything.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TEST_ARGS ?=
TRAIN_ARGS ?=

.PHONY: train test lint clean

train: $(READY)
	$(BIN)/nncsl train $(TRAIN_ARGS)

# Two pytest processes with one torch thread each: the machine's cores are the limit, not the tests.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(TEST_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Installed anew only when what is installed changed.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info

# `make train` on a fresh clone installs into .venv and runs; `make test` checks everything.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TEST_ARGS ?=
TRAIN_ARGS ?=

.PHONY: train test browser lint docs clean

train: $(READY)
	$(BIN)/nncsl train $(TRAIN_ARGS)

# Two pytest processes with one torch thread each: the machine's cores are the limit, not the tests.
test: $(READY) browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(TEST_ARGS)

# The report is looked at in a real browser where one can be had; without, those tests are skipped and say so.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium"; \
	  DEBIAN_FRONTEND=noninteractive timeout 300 sh -c '(apt-get install -qq chromium || (apt-get update -qq && apt-get install -qq chromium)) >/dev/null 2>&1' \
	    || echo "chromium could not be installed: tests of the report in a browser will be skipped"; \
	fi

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# All pages as a site that opens without a server: build/site/index.html.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --config-file docs/site/mkdocs.yml
	@echo "build/site/index.html"

# Installed anew only when what is installed changed.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info

# `make bench` and `make test` need python3, pip and make; they install the rest into .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: bench test test-faults check clean

bench: $(READY)
	$(BIN)/spbench run --quick >/dev/null
	$(BIN)/spbench plot
	$(BIN)/spbench compare

test: $(READY)
	$(BIN)/pytest

test-faults: $(READY)
	$(BIN)/pytest -m "faults or not faults" tests

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --quiet torch
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info

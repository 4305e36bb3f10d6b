# `make bench` and `make test` need python3, pip and make; they install the rest into .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# One more than cores: tests of processes mostly wait.
WORKERS ?= $(shell expr 1 + `nproc 2>/dev/null || echo 1`)

# A file is one worker's, in the order of tests/conftest.py.
BY_FILE := --dist loadfile --no-loadscope-reorder

# Bytecode is kept: tests start dozens of Pythons, each of which would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: bench test test-all check check-format check-types check-imports check-house docs clean

bench: $(READY)
	$(BIN)/spbench run --quick >/dev/null
	$(BIN)/spbench plot
	$(BIN)/spbench compare

# Tests that look at times or at the machine follow the others, alone.
test: $(READY)
	$(BIN)/pytest -n $(WORKERS) $(BY_FILE) -m "not serial and not long"
	$(BIN)/pytest tests/processes -m "serial and not long"

# Everything: also what takes minutes, and all drawn examples in place of one in eight.
test-all: $(READY)
	TEST_ALL=1 $(BIN)/pytest -n $(WORKERS) $(BY_FILE) -m "not serial and not long"
	TEST_ALL=1 $(BIN)/pytest -m "serial or long"

# With -j2 the checks run beside each other, and each one's output stays together with -O.
check: check-format check-types check-imports check-house

check-format: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check-types: $(READY)
	$(BIN)/mypy

check-imports: $(READY)
	$(BIN)/lint-imports

check-house: $(READY)
	$(BIN)/pytest tests/house

# The documentation as a site, in site/; python -m http.server -d site shows it, its search too.
docs: $(READY)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --quiet --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV): torch and what else spbench needs, some minutes and gigabytes"
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --quiet torch --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist site *.egg-info

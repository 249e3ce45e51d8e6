# `make demo` and `make test` work on a fresh machine that has Python 3.11 or later and make.

VENV ?= .venv
# The first of these that is there and recent enough; `make PYTHON=...` chooses another.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p" && break; \
	done)

BIN := $(VENV)/bin
MADE := $(VENV)/.made
INSTALLED := $(VENV)/.installed
DOCS_INSTALLED := $(VENV)/.installed-docs
METADATA := pyproject.toml setup.py dask_marsched/store/_numpy_memory.c

.PHONY: help install demo test test-all endurance suites versions array-suite fuzz check format bench docs docs-links clean

help:
	@echo 'make demo    install into $(VENV) and run the demo       (DEMO="--resolution 3": its options)'
	@echo 'make test    install into $(VENV) and run the tests      (TEST="tests/test_cli.py -x")'
	@echo 'make test-all   run all but the slow tests; those in a browser where there is a Chromium'
	@echo 'make endurance  run the slow tests: chaos, soak, leaks, parts of dask.array'"'"'s suite'
	@echo 'make array-suite  run dask.array'"'"'s suite with and without the plugin (ARRAY_SUITE="test_rechunk")'
	@echo 'make suites  tests of distributed, dask, xarray, stock and with the plugin  (SUITES="--help")'
	@echo 'make versions  tests with each supported version of distributed and Python  (VERSIONS="2026.3")'
	@echo 'make fuzz    fuzz the JSON API                           (FUZZ=500: cases for each operation)'
	@echo 'make check   ruff, mypy and the rules of the layout'
	@echo 'make format  let ruff format the code'
	@echo 'make bench   benchmarks against stock Dask               (BENCH="--repeat 1 --select ...")'
	@echo 'make docs    build the documentation into docs/_build/html, its notebooks run, its links checked'
	@echo 'make docs-links  check the links to other sites          (needs the network)'
	@echo 'make clean   remove $(VENV) and what the tools left behind'

install: $(INSTALLED)

$(MADE):
	@test -n "$(PYTHON)" || { echo 'make: no Python 3.11 or later found; set PYTHON=/path/to/python' >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'make: $(PYTHON) is not Python 3.11 or later' >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || \
		{ echo 'make: no virtual environment could be made (Debian: apt install python3-venv)' >&2; rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

# Installed editable: only a change of the metadata asks for another installation.
# Compiled, as pip does with a wheel: else every worker of the demo would compile what it imports.
$(INSTALLED): $(MADE) $(METADATA)
	$(BIN)/python -m pip install --quiet --editable '.[all]'
	$(BIN)/python -m compileall -q dask_marsched
	@touch $@

$(DOCS_INSTALLED): $(MADE) $(METADATA)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/dask marsched demo $(DEMO)

# Most of a test with a cluster is waiting, so there are more at a time than cores; those of a file run one
# after the other. Hundreds of processes import the package, and some environments let none keep bytecode.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist loadfile

test: $(INSTALLED)
	$(BIN)/python -m compileall -q dask_marsched
	$(PYTEST) -m 'not slow and not extended' --hypothesis-profile quick $(TEST)

test-all: $(INSTALLED)
	$(BIN)/python -m compileall -q dask_marsched
	$(PYTEST) -m 'not slow' $(TEST)

endurance: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

# Needs git and the network, or SUITES="distributed --repository A_CLONE".
suites: $(INSTALLED)
	$(BIN)/python -m suites $(SUITES)

# Needs the network, and the interpreters; environments go to build/versions.
versions: $(INSTALLED)
	$(BIN)/python -m suites.versions $(VERSIONS)

array-suite: $(INSTALLED)
	$(BIN)/python -m tests.array_suite.compare $(ARRAY_SUITE)

FUZZ ?= 50

fuzz: $(INSTALLED)
	MARSCHED_FUZZ_CASES=$(FUZZ) MARSCHED_FUZZ_PHASES=examples,coverage,fuzzing,stateful \
		$(BIN)/python -m pytest tests/api/test_fuzz.py

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_house.py

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks $(BENCH)

# Warnings are errors: a broken reference, a notebook that fails, a page that is in no list.
docs: $(DOCS_INSTALLED)
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html README.md CHANGELOG.md CONTRIBUTING.md
	@echo 'make: open docs/_build/html/index.html'

docs-links: $(DOCS_INSTALLED)
	$(BIN)/python -m sphinx -q -b linkcheck -D nb_execution_mode=off docs docs/_build/linkcheck

clean:
	rm -rf $(VENV) docs/_build build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# make demo: train on the built-in corpus and look at the result.  make test: run the tests.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
DEV_INSTALLED := .venv/.installed-dev

.PHONY: demo install test fuzz check format clean

demo: $(INSTALLED)
	$(BIN)/vlhmm demo

install: $(INSTALLED)

test: $(DEV_INSTALLED)
	$(BIN)/python -m pytest -n 2 -m "not gpu"

# Damaged files of every kind. For more of it: make fuzz CASES=10000 SEED=1 TARGETS="models parquet"
CASES ?= 1000
SEED ?= 0
fuzz: $(DEV_INSTALLED)
	$(BIN)/python -m tests.fuzz $(TARGETS) --cases $(CASES) --seed $(SEED)

check: $(DEV_INSTALLED)
	$(BIN)/ruff format --check vlhmm tests bench
	$(BIN)/ruff check vlhmm tests bench
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV_INSTALLED)
	$(BIN)/ruff format vlhmm tests bench
	$(BIN)/ruff check --fix vlhmm tests bench

clean:
	rm -rf .venv

# The constraints pin what is installed here; the package itself asks for wide ranges.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("vlhmm needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[plot]"
	touch $@

$(DEV_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

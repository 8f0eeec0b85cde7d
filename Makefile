# For a fresh clone: `make demo`, `make serve` and `make test`. Each sets up .venv by itself.
# For a release: `make wheel`, `make docs` and `make release VERSION=1.2.3`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Stamps: what is installed for the command line, for the server with its ears, and for everything.
CLI    := $(VENV)/.cli
SERVER := $(VENV)/.server
READY  := $(VENV)/.ready
SETUP  := pyproject.toml setup.py Makefile
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo serve test lint results wheel docs release setup clean

setup: $(READY)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(CLI): $(SETUP) | $(BIN)/python
	@echo "Installing the command line into $(VENV) …"
	@$(PIP) -e '.[cli]'
	@touch $(CLI)

$(SERVER): $(SETUP) | $(BIN)/python
	@echo "Installing the server into $(VENV) …"
	@$(PIP) -e '.[serve,listen]'
	@touch $(CLI) $(SERVER)

# torch first and by its exact version: the CPU build is a tenth of the size of the others.
$(READY): $(SETUP) | $(BIN)/python
	$(BIN)/pip install --disable-pip-version-check torch==2.13.0
	@echo "Installing everything else into $(VENV): a minute or more …"
	@$(PIP) -e '.[dev]'
	@touch $(CLI) $(SERVER) $(READY)

demo: $(CLI)
	@$(BIN)/python examples/demo.py

# Live translation in the browser: http://127.0.0.1:8000/
serve: $(SERVER)
	@$(BIN)/waitinfo serve

# A process for each core, and each file in one of them: its tests share the models they train.
test: $(READY)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile --max-worker-restart 1

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tables and pictures in results/, drawn from the points there.
results: $(READY)
	$(BIN)/python -m experiments.pages

# The source archive and a wheel with compiled kernels and both models, in dist/; then the wheel
# is tried in an environment without a compiler.
wheel: $(READY)
	$(PIP) -e '.[release]'
	rm -rf build dist
	PATH="$(CURDIR)/$(BIN):$$PATH" .ci/wheel
	PYTHON=$(BIN)/python .ci/try-wheel dist/*.whl

# The documentation as a site, in site/.
docs: $(READY)
	$(PIP) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# The new version in all places, its heading in the changelog, a commit and a tag.
release: $(READY)
	@$(BIN)/python .ci/release.py "$(VERSION)"

clean:
	rm -rf build dist site

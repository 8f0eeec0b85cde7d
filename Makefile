# Two commands for a fresh clone: `make demo` and `make test`. Each sets up .venv by itself.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test lint results setup clean

setup: $(READY)

# torch first and by its exact version: the CPU build is a tenth of the size of the others.
$(READY): pyproject.toml setup.py Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(READY)

demo: $(READY)
	@$(BIN)/python examples/demo.py

# A process for each core, and each file in one of them: its tests share the models they train.
test: $(READY)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tables and pictures in results/, drawn from the points there.
results: $(READY)
	$(BIN)/python experiments/summary.py

clean:
	rm -rf build

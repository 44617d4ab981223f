# Everything runs in .venv. `make demo` and `make test` are all that a fresh machine needs.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test lint soak bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install -e ".[embedded,dev]"
	touch $(STAMP)

demo: setup
	$(BIN)/python -m cifnet_pl fit --config configs/quickstart.yaml

test: setup
	$(BIN)/python -m pytest -m "not soak"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soak: setup
	$(BIN)/python -m pytest -m soak

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv build dist *.egg-info

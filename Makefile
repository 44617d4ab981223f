# Everything runs in .venv. `make demo` and `make test` are all that a fresh machine needs.
PYTHON ?= python3
BIN := .venv/bin
# uv installs the same packages in a third of pip's processor time; a machine without it needs Python alone.
UV := $(shell command -v uv 2>/dev/null)
# Modules are compiled when they are first imported, which is a quarter of all that is installed.
INSTALL := $(if $(UV),$(UV) pip install --python $(BIN)/python,$(BIN)/python -m pip install --no-compile)
unexport PYTHONDONTWRITEBYTECODE
STAMP := .venv/.installed
DEV_STAMP := .venv/.installed-dev

.PHONY: setup setup-dev demo demo-extend test test-heads test-system test-scale lint docs soak bench clean

setup: $(STAMP)

setup-dev: $(DEV_STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(if $(UV),,$(INSTALL) --upgrade pip)
	$(INSTALL) -e ".[embedded,serve]"
	touch $(STAMP)

# Tests, linters and documentation need more than a user does.
$(DEV_STAMP): $(STAMP)
	$(INSTALL) -e ".[embedded,dev]"
	touch $(DEV_STAMP)

demo: setup
	$(BIN)/python -m cifnet_pl fit --config configs/quickstart.yaml
	$(MAKE) demo-extend

# A model that goes on: learn eight digits at once by the exact head, export, extend by the other two from images, classify.
DEMO := lightning_logs/demo-extend
demo-extend: setup
	rm -rf $(DEMO)
	$(BIN)/python -m cifnet_pl fit --config configs/quickstart.yaml --experiment demo-extend \
		--data.initial_classes 8 --data.max_tasks 1 \
		--model.head RidgeHead --model.head.ridge gcv
	$(BIN)/python -m cifnet_pl export --model $(DEMO)/version_0 --output $(DEMO)/eight-digits
	$(BIN)/python -m cifnet_pl unpack --source digits --output $(DEMO)/images
	mkdir -p $(DEMO)/new && ln -sfn ../images/train/8 $(DEMO)/new/8 && ln -sfn ../images/train/9 $(DEMO)/new/9
	$(BIN)/python -m cifnet_pl extend --model $(DEMO)/eight-digits --images $(DEMO)/new --output $(DEMO)/ten-digits
	$(BIN)/python -m cifnet_pl classify --model $(DEMO)/ten-digits --images $(DEMO)/images/val --output $(DEMO)/predictions.csv --gallery $(DEMO)/gallery.png
	@echo "pictures: lightning_logs/quickstart/*/trajectory.png and $(DEMO)/gallery.png"
	@echo "next: $(BIN)/cifnet serve --model $(DEMO)/ten-digits"

PYTEST := $(BIN)/python -m pytest --dist worksteal --ignore tests/scale --ignore tests/soak

# As many workers as cores: each spends fifteen seconds on imports.
test: setup-dev
	$(PYTEST) -n 2 -m "not soak and not scale and not system"

# For whoever writes a head: what all heads promise, and the statistics below them.
test-heads: setup-dev
	$(PYTEST) -n 2 -m "not system" tests/heads tests/statistics

# Tests that start whole programs or a browser, or export or train whole networks.
# Three workers on two cores: many wait for a program or a browser.
test-system: setup-dev
	$(PYTEST) -n 3 -m system tests

# Large packages that most users do without: Ray, Hugging Face datasets.
test-scale: setup-dev
	$(INSTALL) -e ".[ray,hf,tables]" webdataset
	$(BIN)/python -m pytest -m scale -n 0

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: setup-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file .ci/mkdocs.yml
	@echo "documentation: build/site/index.html"

soak: setup-dev
	$(BIN)/python -m pytest -m soak

bench: setup-dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv build dist *.egg-info

# make demo and make test work alone on a fresh machine with Python 3.11; neither needs root.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test e2e lint bench fuzz proto clean

# One stamp per extra: a change of pyproject.toml installs again.
$(VENV)/.demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/zerohop demo

# A file's tests share its fixtures, so a file stays on one worker; the long end-to-end files come first.
test: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

e2e: $(VENV)/.dev
	$(BIN)/pytest tests/e2e -m 'e2e'

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/python -m bench

proto: $(VENV)/.dev
	PATH=$(abspath $(BIN)):$$PATH proto/generate

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# A minute of fuzzing: request bodies, gRPC frames, metrics pages.
fuzz: $(VENV)/.dev
	$(BIN)/pytest -n 2 tests -m fuzz

# make demo and make test work alone on a fresh machine with Python 3.11; neither needs root.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-compiled wheel e2e lint bench fuzz proto clean

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

# The wheel with the modules that every request passes through compiled: one of this platform; needs a C compiler.
COMPILE := HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/python -m build --wheel --no-isolation --outdir
wheel: $(VENV)/.dev
	$(COMPILE) dist

SOURCES := pyproject.toml $(shell find agent console engine picker process snapshot -name '*.py')
build/compiled: $(VENV)/.dev $(SOURCES)
	rm -rf build/compiled build/wheel
	$(COMPILE) build/wheel
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $@ build/wheel/*.whl
	@touch $@

# What the compiled modules take part in, once more.
test-compiled: build/compiled
	PYTHONPATH=$(abspath build/compiled) ZEROHOP_TEST_BUILD=compiled $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder \
	    tests/e2e/box tests/e2e/picker tests/e2e/scheduling tests/unit/console/test_command.py tests/unit/engine \
	    tests/unit/fronts tests/unit/picker tests/unit/scheduling tests/unit/snapshot

e2e: $(VENV)/.dev
	$(BIN)/pytest tests/e2e -m 'e2e'

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: build/compiled
	PYTHONPATH=$(abspath build/compiled) $(BIN)/python -m bench

proto: $(VENV)/.dev
	PATH=$(abspath $(BIN)):$$PATH proto/generate

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# A minute of fuzzing: request bodies, gRPC frames, metrics pages.
fuzz: $(VENV)/.dev
	$(BIN)/pytest -n 2 tests -m fuzz

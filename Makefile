# Parley from a fresh clone. Needs Python 3.11, a Java runtime 17+, Maven.
#   make run     set up what is missing and start everything; Ctrl-C ends it
#   make test    all tests that continuous integration runs; make test-long the rest
#   make watch   Prometheus with the alerts over what `make run` runs, on this machine; Ctrl-C ends it
#   make chaos   everything is killed while 50 users chat, half an hour; make chaos CHAOS="--seconds 100 --users 10"

PYTHON ?= python3
BIN := .venv/bin
UV_VERSION := 0.13.9
STAMPS := .cache/stamps

.PHONY: run watch test test-long bench chaos lint format setup setup-tests clean help
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' Makefile

run: setup
	@exec $(BIN)/parley up

watch: setup
	@exec $(BIN)/python -m infra.watch up

test: setup-tests
	$(BIN)/pytest -n 2 --no-loadscope-reorder -m "not long and not storm" $(PYTEST)
	$(if $(PYTEST),,$(BIN)/pytest -m storm -s tests/chaos)

test-long: setup-tests
	$(BIN)/pytest -m long $(PYTEST)

bench: setup
	$(BIN)/python -m bench $(BENCH)

chaos: setup
	$(BIN)/python -m tests.chaos $(CHAOS)

lint: $(STAMPS)/venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMPS)/venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Everything that comes from elsewhere: Parley's own environment, then Kafka, Cassandra, Triton and the tokenizer, which
# the last line fetches unless they are there.
setup: $(STAMPS)/venv
	@$(BIN)/python -m infra.local prepare

# And what only tests need: Prometheus, where Debian's packages are to be had.
setup-tests: $(STAMPS)/venv
	@$(BIN)/python -m infra.local prepare --tests

# Data stays: it is in var/. Remove that by hand.
clean:
	rm -rf .venv .venv-triton .cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(STAMPS)/tools:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo 'parley: `$(PYTHON)` is missing or older than 3.11: install Python 3.11, or name another with make PYTHON=…' >&2; exit 1; }
	@command -v java >/dev/null || { echo 'parley: `java` is missing: install a Java runtime, version 17 or newer.' >&2; exit 1; }
	@command -v mvn >/dev/null || { echo 'parley: `mvn` is missing: install Apache Maven, which fetches Kafka and Cassandra.' >&2; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/venv: $(STAMPS)/tools requirements.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install -q --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/python -m uv pip install -q --python $(BIN)/python --require-hashes -r requirements.txt
	$(BIN)/python -m uv pip install -q --python $(BIN)/python --no-deps -e .
	@touch $@

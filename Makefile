# `make run` and `make test` install what is missing and need nothing else. `make help` lists the rest.
SHELL := /bin/bash
PY := .venv/bin/python
SOURCES := pyproject.toml CMakeLists.txt tools/setup $(wildcard bpf/*.[ch] bpf/inject/*.[ch])

.PHONY: help setup run test check format bench test-root screenshots clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/ready: $(SOURCES)
	@tools/setup
	@touch $@

.venv/ready-test: .venv/ready
	@tools/setup --test
	@touch $@

setup: .venv/ready ## prepare .venv with the gpuprof-tui command (installs what is missing)

run: .venv/ready ## start the monitor
	@.venv/bin/gpuprof-tui

# Tests that measure nothing run side by side, by two processes more than there are cores: those of the injection library and those that attach
# or record wait much, and come first, since they take longest. The others run one by one: they measure the machine, or sample all of it.
PTY_TESTS := $(wildcard tests/tui/test_*_pty.py)
WAITING_TESTS := tests/native tests/root/test_attach.py tests/root/test_record.py

test: .venv/ready-test ## the whole test suite (as root, the eBPF tests too)
	@failed=0; \
	$(PY) -m pytest -n $$(($$(nproc) + 2)) --dist loadfile --no-loadscope-reorder $(WAITING_TESTS) tests/unit tests/formats tests/tui $(PTY_TESTS:%=--ignore=%) || failed=1; \
	$(PY) -m pytest $(PTY_TESTS) tests/root $(WAITING_TESTS:%=--ignore=%) || failed=1; \
	exit $$failed

test-root: .venv/ready-test ## only the tests that load eBPF programs
	$(PY) -m pytest -m root

check: .venv/ready-test ## ruff, mypy --strict, import contracts, C warnings
	@mkdir -p build/house/gpuprof
	@for room in bpf sampler snapshots tui; do ln -sfn ../../../$$room build/house/gpuprof/$$room; done
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	for source in bpf/ehframe.c bpf/inject/*.c bpf/attach/*.c; do \
	  gcc -std=c11 -fsyntax-only -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Werror $$source || exit 1; done
	for source in $(filter-out %/embedded.c,$(wildcard tests/native/*.c tests/root/*.c tests/root/workloads/*.c)); do \
	  gcc -std=gnu11 -fsyntax-only -Wall -Wextra -Werror -Itests/native -Ibpf/inject $$source || exit 1; done

format: .venv/ready-test ## lay the Python code out
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

bench: .venv/ready-test ## speed and memory, as ratios against a baseline of the same run
	$(PY) tests/bench/run.py

screenshots: .venv/ready-test ## the pictures of the README, made by the command itself
	$(PY) tools/screenshots.py

clean: ## remove what was built
	rm -rf .venv build

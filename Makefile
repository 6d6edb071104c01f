# Commands for a newcomer: `make demo`, `make pair` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
PY := $(BIN)/python
STAGE = $(PY) tools/stage.py
export ANSIBLE_INJECT_FACT_VARS := false
export ANSIBLE_ALLOW_EMBEDDED_TEMPLATES := false
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help setup setup-dev demo pair lab lab-down vm-lab vm-lab-down check lint types unit fuzz sim sanity contract molecule e2e docs test vm-test long lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

setup:
	@tools/setup.sh run
setup-dev:
	@tools/setup.sh dev

demo: setup  ## set-up, the container lab, site.yml, and a completion from the real engine
	@$(STAGE) "the lab: two nodes" -- $(PY) lab/container/lab.py up
	@$(STAGE) "site.yml" -- $(BIN)/ansible-playbook site.yml -i inventories/lab

pair: setup  ## two real Sparks: asks for addresses and login, and writes inventories/mine
	@$(BIN)/ansible-playbook playbooks/setup.yml $(SETUP)

lab: setup  ## the container lab (LAB_NODES=4: two serving groups)
	@$(PY) lab/container/lab.py up
lab-down:  ## remove what the lab started
	@$(PY) lab/container/lab.py down
vm-lab: setup  ## the VM lab
	@$(PY) lab/vm/vmlab.py up
vm-lab-down:  ## remove what the VM lab started
	@$(PY) lab/vm/vmlab.py down

check: setup-dev  ## the quick half: lint, types, unit tests (two to three minutes)
	@$(STAGE) "lint and types" -- $(MAKE) --no-print-directory --jobs=2 --output-sync=target lint types
	@$(STAGE) "unit tests" -- $(MAKE) --no-print-directory unit
lint:
	@$(BIN)/ruff check .
	@$(BIN)/bandit --quiet --recursive --configfile pyproject.toml plugins extensions tools lab benchmarks
	@PYTHONPATH=collections $(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/yamllint --strict .
	@$(PY) tools/limits.py
	@$(PY) tools/dependencies.py
	@$(PY) tools/words.py
	@$(PY) tools/docs.py --check
	@$(PY) tools/failures_doc.py --check
	@$(PY) tools/seeds_doc.py --check
	@$(PY) tools/acceptance.py
	@$(BIN)/ansible-lint --offline
types:
	@$(BIN)/mypy plugins extensions tests lab tools benchmarks
# Each worker compiles 300 modules with pytest's assertions, unless it finds them in a cache.
unit:
	@env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX=$(CURDIR)/.pytest_cache/bytecode $(BIN)/pytest tests/unit tests/security -q -n 2 -m "not long and not slow"

sanity: setup-dev  ## ansible-test sanity on a staged copy, antsibull-docs, the documentation site
	@tools/sanity.sh
sim: setup-dev  ## the agent over simulated schedules of faults (GB10_SCHEDULES=20000 for more than 500)
	@$(BIN)/pytest tests/sim -q
contract: setup-dev  ## the playbooks' contract: inventory, check mode, docs
	@$(BIN)/pytest tests/contract -q
molecule: setup-dev  ## one scenario a role, in containers
	@tools/molecule.sh
e2e: setup-dev  ## the real engine over two nodes, faults included
	@$(BIN)/pytest tests/lab -q
vm-test: setup-dev  ## host bring-up on two emulated machines: real kernels, reboots, soft-RoCE
	@$(BIN)/pytest tests/vm -q --durations=20
docs: setup-dev  ## the documentation site, in .site/html
	@tools/docs_site.sh
test: setup-dev  ## every test that is part of CI
	@$(STAGE) "make test" -- tools/test.sh

long: setup-dev  ## what takes hours: every schedule and contract case, hostile answers, the fault table, the day-2 table, recovery, random faults
	@$(STAGE) "the contract, every case" -- $(BIN)/pytest tests/contract -q -n 2 -m long
	@$(STAGE) "the agent over 20,000 simulated schedules" -- env GB10_SCHEDULES=20000 $(BIN)/pytest tests/sim/test_schedules.py -q
	@$(STAGE) "10,000 hostile answers of nodes, modules, APIs and the Docker Engine" -- env GB10_FUZZ=10000 $(BIN)/pytest \
	  tests/security/test_hostile_answers.py tests/security/test_hostile_copy.py tests/security/test_hostile_results.py tests/security/test_hostile_texts.py -q
	@$(STAGE) "the rest of the end-to-end tests" -- $(BIN)/pytest tests/lab -q -m long
	@$(STAGE) "the rest of the tests on emulated machines" -- $(BIN)/pytest tests/vm -q -m long
	@$(STAGE) "molecule: sysctl, readahead, roce, vllm_tp2" -- tools/molecule.sh sysctl readahead roce vllm_tp2
	@$(STAGE) "fault table" -- $(PY) benchmarks/fault_table.py --write
	@$(STAGE) "day-2 table" -- $(PY) benchmarks/day2_table.py --write
	@$(STAGE) "recovery" -- $(PY) benchmarks/recovery.py --compare --write
	@$(STAGE) "200 random faults on stub ranks" -- $(PY) benchmarks/soak.py --faults 200 --stub --write
	@$(STAGE) "20 random faults with the real engine" -- $(PY) benchmarks/soak.py --faults 20 --write

lock: setup  ## renew requirements*.lock: the newest versions in the ranges of requirements*.txt, with hashes
	@tools/lock.sh
clean:  ## remove what the tools left in the checkout
	rm -rf .venv .lab .site .ansible .mypy_cache .ruff_cache .pytest_cache .hypothesis

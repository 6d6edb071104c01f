# Commands for a newcomer: `make demo`, `make pair` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
PY := $(BIN)/python
export ANSIBLE_INJECT_FACT_VARS := false
export ANSIBLE_ALLOW_EMBEDDED_TEMPLATES := false
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help setup setup-dev demo pair lab lab-down vm-lab vm-lab-down gpu-bundle gpu-lab gpu-demo gpu-test gpu-lab-down check lint lint-ansible lint-quick types unit sim sanity contract molecule net net-machines docs test more long bench lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

setup:
	@tools/setup.sh run
setup-dev:
	@tools/setup.sh dev

demo: setup  ## set-up, the container lab, site.yml, and a completion from the real engine
	@$(PY) lab/container/lab.py up
	@$(BIN)/ansible-playbook site.yml -i inventories/lab

pair: setup  ## two real Sparks: asks for addresses and login, and writes inventories/mine
	@$(BIN)/ansible-playbook playbooks/setup.yml -i localhost, $(SETUP)

lab: setup  ## the container lab (LAB_NODES=4: two serving groups; LAB_ENGINE=stub: without the real engine)
	@$(PY) lab/container/lab.py up
lab-down:  ## remove what the lab started
	@$(PY) lab/container/lab.py down
vm-lab: setup  ## the VM lab
	@$(PY) lab/vm/vmlab.py up
vm-lab-down:  ## remove what the VM lab started
	@$(PY) lab/vm/vmlab.py down
# The GPU lab needs no .venv on the machine with the GPUs: its Ansible comes with the bundle.
gpu-bundle: setup  ## what the GPU lab's machine does not have, packed into .gpu-bundle (Docker and a network)
	@$(PY) -m lab.gpu bundle
gpu-lab:  ## the GPU lab: two nodes, each with one GPU, or one for both (root, an NVIDIA driver; lab/gpu/README.md)
	@python3 -m lab.gpu up
gpu-demo:  ## the GPU lab, site.yml, and a completion from its GPUs
	@python3 -m lab.gpu demo
gpu-test:  ## the GPU lab and tests/gpu (PART=NAME: one part)
	@python3 -m lab.gpu test $(PART)
gpu-lab-down:  ## end the GPU lab
	@python3 -m lab.gpu down

check: setup-dev  ## lint, types, unit tests: the loop to work in (two minutes)
	@$(PY) tools/stages.py check
lint: lint-ansible lint-quick
lint-ansible:
	@$(PY) tools/ansible_lint.py
lint-quick:
	@$(BIN)/ruff check .
	@$(BIN)/bandit --quiet --recursive --configfile pyproject.toml plugins tools lab benchmarks
	@PYTHONPATH=collections $(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/yamllint --strict .
	@$(PY) tools/limits.py
	@$(PY) tools/dependencies.py
	@$(PY) tools/words.py
	@$(PY) tools/docs.py --check
	@$(PY) tools/failures_doc.py --check
	@$(PY) tools/acceptance.py
types:
	@$(BIN)/mypy plugins tests lab tools benchmarks
# Each worker compiles 300 modules with pytest's assertions, unless it finds them in a cache.
unit:
	@env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX=$(CURDIR)/.pytest_cache/bytecode $(BIN)/pytest tests/unit tests/security -q -n 2 -m "not long and not slow"

sanity: setup-dev  ## ansible-test sanity on a staged copy, antsibull-docs, the documentation site
	@tools/sanity.sh
sim: setup-dev  ## the agent over simulated schedules of faults (GB10_SCHEDULES=20000 for more than 500)
	@$(BIN)/pytest tests/sim -q
contract: setup-dev  ## the playbooks' contract: inventory, check mode, docs
	@$(BIN)/pytest tests/contract -q -n 2 -m "not long"
molecule: setup-dev  ## one scenario a role, in containers
	@tools/molecule.sh
net: setup-dev  ## the acceptance net on the container lab with the stub engine
	@LAB_ENGINE=stub $(BIN)/pytest tests/acceptance -q --ignore tests/acceptance/test_g_machines.py --ignore tests/acceptance/test_h_engine.py
net-machines: setup-dev  ## the acceptance net on two emulated machines: real kernels, reboots, soft-RoCE
	@$(BIN)/pytest tests/acceptance/test_g_machines.py -q
docs: setup-dev  ## the documentation site, in .site/html
	@tools/docs_site.sh
test: setup-dev  ## all kinds of tests, what matters most of each: 11 to 35 minutes on two cores
	@$(PY) tools/stages.py test
more: setup-dev  ## the other rows of the acceptance net, sanity, and slow tests: 12 to 40 minutes; CI runs it after make test
	@$(PY) tools/stages.py more
long: setup-dev  ## what takes hours: every schedule, whole fault tables, soak (PART=REGEX: some of its stages)
	@$(PY) tools/stages.py long --only "$(PART)"
bench: setup-dev  ## what our own programs cost, on the container lab (PART=REGEX); docs/measured/performance.md has earlier figures
	@$(PY) tools/stages.py bench --only "$(PART)"

lock: setup  ## renew requirements*.lock: the newest versions in the ranges of requirements*.txt, with hashes
	@tools/lock.sh
clean:  ## remove what the tools left in the checkout
	rm -rf .venv .lab .gpu-bundle .site .ansible .mypy_cache .ruff_cache .pytest_cache .hypothesis

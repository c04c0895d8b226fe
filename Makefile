# Targets set themselves up and are idempotent. PYTHON=python3.12 picks the interpreter,
# ARGS="..." goes to the program that the target runs.

.DEFAULT_GOAL := help
.PHONY: help run demo test lint format golden render pictures bench wheel dist clean setup programs
.NOTPARALLEL:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## run the agent: live where there is a GPU, else a replay of bundled recordings
	@tools/venv run
	@tools/run $(ARGS)

demo: programs ## six replaying hosts with a real Prometheus and Alertmanager, until Ctrl-C
	@tools/venv run
	@tools/demo $(ARGS)

test: setup programs ## every check and every test
	@status=0; \
	tools/lint || status=1; \
	.venv/bin/python -m pytest $(ARGS) || status=1; \
	exit $$status

lint: setup ## every check that is no test
	@tools/lint

format: setup ## rewrite the code as ruff formats it
	@.venv/bin/ruff check --fix-only --quiet .
	@.venv/bin/ruff format .

golden: setup programs ## rewrite tests/golden from what the code does now; review the diff
	@.venv/bin/python -m pytest --update $(ARGS)

render: setup ## rewrite alerts/, dashboards/ and the reference from the tables
	@.venv/bin/gpuwhy render --config /dev/null $(ARGS)

pictures: setup programs ## draw dashboards and page over replays into docs/pictures
	@tools/pictures $(ARGS)
	@[ -n "$(ARGS)" ] || .venv/bin/python -m tests.live.page

bench: setup ## measure what the agent costs
	@for script in bench/agent.py bench/scrape.py bench/host.py bench/whose.py bench/store.py bench/web.py; do echo "$$script"; .venv/bin/python "$$script" $(ARGS) || exit 1; done

wheel: setup ## build the wheel into dist/
	@.venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

dist: setup ## build source archive and wheel of the last commit into dist/, as a release has them
	@tools/dist

clean: ## remove all that these targets made
	rm -rf .venv .venv-run .tools dist build .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

setup:
	@tools/venv dev

# On a person's machine a program that cannot be had costs its tests, each reported by name. In CI it
# fails the run.
programs:
	@tools/unpack prometheus promtool || [ "$$CI" != true ]
	@tools/unpack prometheus prometheus || [ "$$CI" != true ]
	@tools/unpack prometheus-alertmanager prometheus-alertmanager || [ "$$CI" != true ]
	@tools/unpack prometheus-alertmanager amtool || [ "$$CI" != true ]

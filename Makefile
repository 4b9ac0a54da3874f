# Every target sets up what it needs: a virtual environment in .venv with the versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
ROUNDS ?= 10
# Three at a time also on two cores: tests wait more than they compute. The long files come first.
AT_ONCE := -n 3 --dist loadfile --no-loadscope-reorder
# A test that hangs ends the run, which names it and prints the stack of every thread.
AT_ONCE += --max-worker-restart 0 -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true
# The newest of every minor version that pyproject.toml allows, but for the one in .venv.
PYSPARKS := 4.0.5 4.1.4 4.2.1
DEMO := $(if $(ACCESS_LOG),--access-log $(ACCESS_LOG),) $(if $(FAULT),--fault $(FAULT),) $(if $(EVENTS),--events $(EVENTS),) $(if $(SECURE),--secure,) $(if $(REPLICAS),--replicas $(REPLICAS),) $(if $(JSON),--java-services plugins/java/demo/target/jars,)

# Images of containers often switch it off; every process that a test starts would then compile Millrace again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check sim lines mutants up compat jar test-hdfs test-hadoop test-readers test-objects test-airflow test-deploy test-kubernetes docs-test site soak attack bench-broker bench-load bench-audit bench-registry dist clean setup kcat krb5 mvn java-service fault-load fault-audit fault-restore

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: $(if $(JSON),java-service) setup ## The whole path once on real processes, then the proof [JSON=1] [ACCESS_LOG=file] [FAULT=drop|duplicate] [EVENTS=n] [SECURE=1] [REPLICAS=3]
	$(BIN)/millrace demo $(DEMO)

test: setup ## Unit and integration tests on real ZooKeeper, Spark and Airflow (10 min) [ACCESS_LOG=file]
	$(BIN)/python -m pytest $(AT_ONCE)

test-slow: setup ## Tests that take five seconds or more: kills again and again, a Spark cluster, a page of the docs word for word (15 min) [ACCESS_LOG=file]
	$(BIN)/python -m pytest $(AT_ONCE) -m "slow and not long"

check: setup ## Style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy broker/millrace broker/millrace_broker broker/millrace_mirror broker/millrace_consumer broker/millrace_registry \
	  broker/millrace_commands broker/millrace_audit broker/millrace_agent broker/millrace_demo \
	  plugins/millrace_avro plugins/millrace_warehouse \
	  plugins/millrace_spark plugins/pyspark_millrace plugins/millrace_airflow \
	  plugins/millrace_airflow_plugin.py dags docs/examples tests
	$(BIN)/lint-imports

sim: setup ## Histories of a replicated partition with crashes, lost disks and cuts, then each rule taken out [HISTORIES=n] [FIRST=seed]
	$(BIN)/python -m tests.trials.sim $(if $(HISTORIES),--histories $(HISTORIES)) $(if $(FIRST),--first $(FIRST))

lines: setup ## Lines of each package beside those of the last release
	$(BIN)/python -m tests.lines

up: setup ## Two datacenters and the offline one on this machine, until Ctrl-C
	$(BIN)/millrace up

compat: setup kcat ## Other Kafka clients, Spark and Apache Kafka itself against live brokers
	$(BIN)/python -m pytest $(AT_ONCE) tests/compat

jar: mvn ## millrace-audit-VERSION.jar, which audits Java producers, into plugins/java/target (needs Maven)
	mvn -q -B -ntp -f plugins/java clean package

java-service: jar
	mvn -q -B -ntp -f plugins/java/demo clean package
	cp plugins/java/target/millrace-audit-*.jar plugins/java/demo/target/jars

test-hdfs: setup ## Loads on a real HDFS from Maven: drivers, NameNode and DataNodes killed (10 min)
	$(BIN)/python -m pytest tests/hdfs

test-hadoop: setup mvn krb5 ## Loads on an HDFS with Kerberos: failovers, tickets, tokens, clocks and keys that are wrong; loads on a YARN with Kerberos, every part killed (29 min)
	$(BIN)/python -m pytest tests/hadoop

test-objects: setup ## Loads and tables in an object store (SeaweedFS): lost answers, servers killed; tables in Hive Metastores (7 min)
	$(BIN)/python -m pytest tests/objects

test-airflow: setup ## A live Airflow on PostgreSQL: scheduler, workers and triggerer killed, tasks cleared, a backfill of 24 hours (17 min)
	$(BIN)/python -m pytest tests/airflow

test-deploy: setup .cache/deploy/.installed ## Everything in deploy/: systemd, Prometheus, Helm, Ansible, containers, ten machines in namespaces, restore, upgrade (10 min)
	PATH="$(CURDIR)/.cache/deploy/bin:$(CURDIR)/.cache/deploy/python/bin:$$PATH" $(BIN)/python -m pytest tests/unit/deploy tests/deploy

.cache/deploy/.installed: tests/deploy/install.sh tests/deploy/requirements.txt
	@PYTHON="$(PYTHON)" tests/deploy/install.sh .cache/deploy
	@touch $@

test-kubernetes: setup .cache/kubernetes/.installed ## The Helm chart and loads on a real Kubernetes API server, built here once from Go modules (3 min; the build 12 min of CPU and 4 GB once)
	$(BIN)/python -m pytest tests/kubernetes

# At most two compilers at a time: with more of them a small machine runs out of memory. An API server that is built
# without its version calls itself 0.0.0, and Helm refuses it.
VERSION_OF := k8s.io/component-base/version
.cache/kubernetes/.installed: $(wildcard tests/peers/kube/*)
	@command -v go >/dev/null || { echo "go is not on the PATH: install Go 1.26" >&2; exit 1; }
	@echo "Building Kubernetes' API server and Helm from Go modules into .cache/kubernetes, once."
	@mkdir -p $(@D)
	cd tests/peers/kube && version=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes) && minor=$${version#v1.} && \
	  nice go build -p 2 -o $(CURDIR)/$(@D)/kube -ldflags "-s -w -X $(VERSION_OF).gitVersion=$$version \
	    -X $(VERSION_OF).gitMajor=1 -X $(VERSION_OF).gitMinor=$${minor%%.*}" .
	cd tests/peers/kube && nice go build -p 2 -o $(CURDIR)/$(@D)/helm -ldflags '-s -w' helm.sh/helm/v3/cmd/helm
	@touch $@

test-readers: setup .cache/readers/.installed $(PYSPARKS:%=.cache/pyspark-%/.installed) ## Spark with Iceberg's runtime, DuckDB, pandas, polars on published tables; older PySparks; Trino (821 MB, Java 24; 9 min) [ACCESS_LOG=file]
	$(BIN)/python -m pytest tests/readers

.cache/readers/.installed: tests/readers/requirements.txt
	$(PYTHON) -m venv .cache/readers
	.cache/readers/bin/pip install --disable-pip-version-check --quiet --requirement $<
	@touch $@

.cache/pyspark-%/.installed: | setup
	$(BIN)/pip install --disable-pip-version-check --quiet --upgrade --target $(@D) pyspark==$*
	@touch $@

soak: setup ## The property tests on new examples, then kills, power cuts and the attack, ROUNDS rounds each (10)
	MILLRACE_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest -n 2 --dist loadfile -m "not soak and not long" tests/unit
	MILLRACE_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest -m "soak or long"
	$(MAKE) attack

attack: setup ## Crafted and random requests for every API, also before a login and at the services, and a million open windows, counted in the broker's CPU time and memory [ROUNDS=n] [SEED=n]
	$(BIN)/python -m tests.trials.attack --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

# Every block of these is run by `make docs-test`.
PAGES := docs/getting-started.md docs/your-own-event.md docs/keep-your-kafka.md docs/json-topic.md docs/secure-datacenters.md docs/airflow-standalone.md
docs-test: setup ## Every code block of the pages that begin with nothing, typed as it stands (5 min)
	$(BIN)/python -m tests.trials.docs $(PAGES)

site: setup ## docs/, README and public docstrings as a site into .cache/site, every link checked (10 s)
	$(BIN)/python deploy/site/build.py .cache/site

mutants: setup ## Faults put into a copy, one at a time: the test of each row of the paper must notice its own [ONLY="row ..."]
	$(BIN)/python -m tests.trials.mutants $(if $(ONLY),--only $(ONLY))

fault-load: setup ## 100 loads while every part is killed at random, brokers also with their disks, then 20 power cuts (35 min) [LOADS=n] [POWER_CUTS=n] [SEED=n] [YARN=1 [KERBEROS=1]]
	$(BIN)/python -m tests.trials.faultload $(if $(LOADS),--loads $(LOADS)) $(if $(POWER_CUTS),--power-cuts $(POWER_CUTS)) $(if $(SEED),--seed $(SEED)) $(if $(YARN),--yarn) $(if $(KERBEROS),--kerberos)

fault-audit: setup ## Faults at every hop, each to be found there and named; then clean windows under kills (an hour) [WINDOWS=n] [ONLY=name] [SEED=n]
	MILLRACE_WAIT_S=$${MILLRACE_WAIT_S:-300} $(BIN)/python -m tests.trials.faultaudit $(if $(WINDOWS),--windows $(WINDOWS)) $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED))

fault-restore: setup ## Every store put back from an older copy: noticed, nothing lost, no wrong verdict (25 min) [ONLY=store]
	MILLRACE_WAIT_S=$${MILLRACE_WAIT_S:-300} $(BIN)/python -m tests.trials.faultrestore $(if $(ONLY),--only $(ONLY))

bench-broker: setup ## Millrace beside Kafka, RabbitMQ and ActiveMQ: docs/benchmarks.md (25 min, 40 GB) [QUICK=1] [ONLY=millrace,...] [CELLS=consume,...]
	$(BIN)/python -m tests.bench.broker $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(CELLS),--cells $(CELLS))

bench-load: setup .cache/readers/.installed ## Loads, fresh rows and mirrors beside Spark and MirrorMaker 2: docs/benchmarks.md (40 min, 10 GB) [QUICK=1] [ONLY=...] [CELLS=load,...]
	$(BIN)/python -m tests.bench.load $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(CELLS),--cells $(CELLS))
	$(if $(ONLY)$(CELLS),,$(BIN)/python -m tests.bench.load.latency $(if $(QUICK),--quick))
	$(if $(ONLY)$(CELLS)$(QUICK),,$(BIN)/python -m tests.bench.load.freshness --page)

bench-audit: setup ## What the audit costs a producer, a reader and the auditor, and its page: docs/benchmarks.md (2 min) [EVENTS=n]
	$(BIN)/python -m tests.bench.bench_audit --page $(if $(EVENTS),--events $(EVENTS))
	$(BIN)/python -m tests.bench.bench_auditor
	$(BIN)/python -m tests.bench.bench_judging --page
	$(BIN)/python -m tests.bench.bench_console --page

bench-registry: setup ## Look-ups of a registry on one core, SQLite and PostgreSQL: docs/benchmarks.md (2 min)
	$(BIN)/python -m tests.bench.bench_registry --page

DIST ?= dist
dist: ## An sdist, a wheel with the compiled functions and a wheel of Python alone, into dist/ (1 min) [DIST=folder]
	@test -x .cache/build/bin/pyproject-build || { $(PYTHON) -m venv .cache/build && .cache/build/bin/pip install --quiet build; }
	rm -rf $(DIST)
	.cache/build/bin/pyproject-build --outdir $(DIST)
	MILLRACE_PURE_WHEEL=1 .cache/build/bin/pyproject-build --wheel --outdir $(DIST)

setup: .venv/.installed ## Install everything into .venv

.venv/.installed: pyproject.toml constraints.txt broker/millrace/records/_runs.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "millrace needs Python 3.11 or newer: set PYTHON=/path/to/python3.11")'
	@java -version 2>&1 | awk -F '"' '/version/ {split($$2, v, "."); found = 1; if (v[1] < 17) bad = 1} END {exit !(found && !bad)}' \
	  || { echo "millrace needs Java 17 or newer on the PATH for ZooKeeper and Spark" >&2; exit 1; }
	@echo "Installing Millrace with Spark, Airflow and the tools of the tests into .venv, once: 1.4 GB on the disk."
	@echo "It takes minutes; these are its large parts:"
	@$(PYTHON) -m venv .venv
	@bash -o pipefail -c "$(BIN)/pip install --disable-pip-version-check --progress-bar off --log .venv/pip.log \
	  --constraint constraints.txt --editable '.[spark,objects,airflow,postgres,dev]' \
	  | awk '/ MB\)|^Building wheel/ {print} /^The conflict/ {c = 1} c {print} /^Installing/ {print \"Installing\", NF - 3, \"packages\"} {fflush()}'" \
	  || { echo "pip could not install Millrace: mend what it says above (all its lines: .venv/pip.log), then run make again" >&2; exit 1; }
	@touch $@

mvn:
	@command -v mvn >/dev/null || { echo "mvn is not on the PATH: install Maven (Debian: apt-get install maven)" >&2; exit 1; }

kcat:
	@command -v kcat >/dev/null || apt-get install --yes --quiet kcat >/dev/null || \
	  { echo "kcat is not installed and could not be: install it with your package manager" >&2; exit 1; }

# RUNLEVEL=1: the packages must not start servers. MIT's KDC, its tools, and a clock that can be wrong.
krb5:
	@PATH="$$PATH:/usr/sbin"; command -v krb5kdc >/dev/null && command -v kadmin.local >/dev/null && command -v kinit >/dev/null && ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || \
	  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet krb5-kdc krb5-admin-server krb5-user libfaketime >/dev/null || \
	  { echo "Kerberos is not installed and could not be: install MIT's KDC, its tools and libfaketime" >&2; exit 1; }

clean: ## Remove the virtual environment and caches
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache millrace-data

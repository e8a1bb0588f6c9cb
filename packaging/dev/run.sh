#!/usr/bin/env bash
# Shows bayplan at work: against this machine's container runtime where its NRI socket is served, else in a virtual
# machine with four NUMA nodes. Arguments go to baypland, or to the demonstration.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${BAYPLAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/bayplan}
socket=${NRI_SOCKET:-/var/run/nri/nri.sock}
export PATH="$cache/bin:$PATH"
cd "$here"

# A socket file may outlive its runtime: only one that somebody listens on counts.
served() {
	[ -S "$socket" ] && grep -q " 00010000 0001 .* $(readlink -f "$socket")\$" /proc/net/unix
}

if served; then
	setpriv --pdeathsig TERM packaging/dev/setup.sh test
	if [ "$(id -u)" != 0 ]; then
		echo "run: baypland needs root to see containers' processes and cgroups: run this as root" >&2
		exit 1
	fi
	echo "run: baypland on $socket; end it with Ctrl-C, see it with: .venv/bin/bayplan status"
	exec .venv/bin/baypland --nri-socket "$socket" "$@"
fi
echo "run: nothing serves $socket here; showing bayplan in a virtual machine"
setpriv --pdeathsig TERM packaging/dev/setup.sh run
exec .venv/bin/python tests/e2e/demo.py "$@"

#!/usr/bin/env bash
# What is handed out, made from the last commit and nothing else: the same commit gives the same bytes.
#
#   build.sh dist [DIRECTORY]    sdist and wheel, and their bill of materials (CycloneDX), in dist/
#   build.sh deb [DIRECTORY]     the Debian package, too
#
# The Debian package brings the locked packages along, compiled for every Python it may meet, in one directory: what is
# compiled has the version in its name, all else is the same for all. So one file serves Debian 12 and 13, and goes on
# working when the one becomes the other.
set -euo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pythons=(3.11 3.12 3.13)
glibc=2_28 # the oldest that the compiled packages are offered for, Debian 10's

case "${1:-}" in
dist | deb) what=$1 ;;
*)
	echo "usage: $0 dist|deb [DIRECTORY]" >&2
	exit 2
	;;
esac
out=$(realpath -m "${2:-$here/dist}")
commit=$(git -C "$here" rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git -C "$here" log -1 --format=%ct)
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C.UTF-8
[ -z "$(git -C "$here" status --porcelain)" ] || echo "build: what is not committed is not in it" >&2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$out" "$scratch/tree"
git -C "$here" archive "$commit" | tar -x -C "$scratch/tree"
cd "$scratch/tree"

# packages PYTHON: the locked packages for it, in $scratch/PYTHON.
packages() {
	uv pip install --quiet --target "$scratch/$1" --python-version "$1" \
		--python-platform "$(uname -m)-manylinux_$glibc" --require-hashes --requirements pyproject.toml --extra agent \
		--constraints requirements.lock --build-constraints requirements.lock
}

hatchling build --directory "$scratch/dist" >/dev/null 2>&1
wheel=$(echo "$scratch"/dist/*.whl)
version=$(basename "$wheel" | cut -d- -f2)
packages "${pythons[0]}"
python packaging/sbom.py --version "$version" --packages "$scratch/${pythons[0]}" --lock requirements.lock \
	>"$scratch/dist/bayplan-$version.cdx.json"

if [ "$what" = deb ]; then
	# Before the release of a version come the builds of its commits, in their order.
	[ "$(git -C "$here" tag --points-at "$commit" "v$version")" ] ||
		version=$version~git$(date -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).${commit:0:8}
	build=$scratch/build
	mkdir -p "$build/lib" "$build/bin"
	for python in "${pythons[@]}"; do
		[ -d "$scratch/$python" ] || packages "$python"
		# What other packages have as programs is nobody's here; installers' notes differ from Python to Python.
		rm -rf "$scratch/$python/bin" "$scratch/$python"/*.dist-info/{RECORD,WHEEL,INSTALLER,REQUESTED,uv_build.json} \
			"$scratch/$python/.lock"
		cp -r "$scratch/$python/." "$build/lib"
	done
	uv pip install --quiet --target "$scratch/own" --python-version "${pythons[0]}" --no-deps "$wheel"
	mv "$scratch/own/bayplan" "$build/lib"
	find "$build/lib" -type f -exec chmod 644 {} +
	mv "$scratch/own/share" "$build/share"
	# Debian's zsh reads what packages bring from here.
	mv "$build/share/zsh/site-functions" "$build/share/zsh/vendor-completions"
	# The package's units run /usr/bin; these would run another installation.
	rm -r "$build/share/bayplan/packaging/systemd"
	cp "$scratch"/dist/*.cdx.json "$build/sbom.cdx.json"
	cp -r packaging/debian "$build/debian"
	cp -r README.md CHANGELOG.md docs "$build"
	rm -r "$build/docs/man"
	python packaging/programs.py "$wheel" /usr/lib/bayplan "$build/bin"
	for unit in bayplan bayplan-agent; do
		sed 's:/opt/bayplan/bin/:/usr/bin/:' "packaging/systemd/$unit.service" >"$build/debian/bayplan.$unit.service"
	done
	mv "$build/debian/bayplan.bayplan.service" "$build/debian/bayplan.service"
	cp packaging/systemd/bayplan-agent.conf "$build/debian/bayplan.sysusers"
	cat >"$build/debian/changelog" <<-EOF
		bayplan ($version) unstable; urgency=medium

		  * Commit $commit.

		 -- $(sed -n 's/^Maintainer: //p' packaging/debian/control)  $(date -R -d "@$SOURCE_DATE_EPOCH")
	EOF
	(cd "$build" && dpkg-buildpackage --build=binary --no-sign --no-pre-clean >"$scratch/log" 2>&1) || {
		cat "$scratch/log" >&2
		exit 1
	}
	mv "$scratch"/bayplan_*.deb "$scratch/dist"
	# Those of earlier commits: one is meant where bayplan_*.deb is installed.
	rm -f "$out"/bayplan_*.deb
fi
for file in "$scratch"/dist/*; do
	mv -f "$file" "$out"
	echo "$out/$(basename "$file")"
done

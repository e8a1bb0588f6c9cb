#!/bin/sh
# Generates plugin/bayplan/_proto from the .proto files of this directory.
#   proto/generate.sh           write the code into the tree
#   proto/generate.sh --check   fail when the committed code is not what this would write
#
# grpcio-tools 1.78.0 writes code that loads on protobuf 6.31.1 up to 7.x, and newer ones do not load on
# 6.x. Stubs come from mypy-protobuf, because protoc's own are a syntax error for an enum value "None".
# The tools run outside the project's environment: they pin protobuf to their own major version.
set -eu

cd "$(dirname "$0")/.."

generate() {
    files=$(cd proto && find . -name '*.proto' | LC_ALL=C sort | sed 's|^\./|bayplan/_proto/|')
    # shellcheck disable=SC2086
    uv run --quiet --no-project --with grpcio-tools==1.78.0 --with mypy-protobuf==5.1.0 \
        python -m grpc_tools.protoc -I bayplan/_proto=proto --python_out="$1" --mypy_out=quiet:"$1" $files
    # Those of the daemon, whose start somebody waits for.
    python3 proto/lean.py "$1/bayplan/_proto/nri/api_pb2.py"
}

case "${1-}" in
"")
    generate plugin
    ;;
--check)
    fresh=$(mktemp -d)
    trap 'rm -rf "$fresh"' EXIT
    generate "$fresh"
    # Both directions: a stale file, a missing file, and a generated file whose source is gone.
    if ! diff -r --brief --exclude=__init__.py --exclude=__pycache__ --exclude=.mypy_cache \
        "$fresh/bayplan/_proto" plugin/bayplan/_proto; then
        echo "proto/generate.sh: plugin/bayplan/_proto is not what proto/ generates; run 'make proto'" >&2
        exit 1
    fi
    ;;
*)
    echo "usage: proto/generate.sh [--check]" >&2
    exit 2
    ;;
esac

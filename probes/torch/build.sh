#!/usr/bin/env bash
# Builds the workspace: build.sh TARGET_DIR.
# The first time, torch-sys compiles C++ for minutes and cargo says nothing meanwhile; in a log, somebody has to.
set -euo pipefail
target=${1:-target}

heartbeat() {
    local began=$SECONDS
    while sleep 30 </dev/null >/dev/null 2>&1; do
        echo "  still compiling, $((SECONDS - began)) s"
    done
}

if ! compgen -G "$target/release/build/torch-sys-*/out/libtch.a" >/dev/null; then
    echo "Building for the first time: the C++ of torch-sys takes about 4 minutes on two cores, once."
    if [[ ! -t 2 ]]; then
        heartbeat &
        trap 'kill $! 2>/dev/null || true' EXIT
    fi
fi
cargo build --release --workspace

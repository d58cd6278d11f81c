#!/usr/bin/env bash
# Builds the tests of kernels and engine for aarch64 and runs them in an emulator: on a CPU with the extensions of NEON that
# kernels use, and on one without. What this needs is put into the given directory, with what is built.
#
#     tests/on_aarch64.sh DIR [PACKAGE [FILTER...]]
#
# Exits with 3 where it cannot be had (see fetch_aarch64.sh).
set -euo pipefail
mkdir -p "$1"
directory="$(cd "$1" && pwd)"
shift
cd "$(dirname "$0")/.."
sh tests/fetch_aarch64.sh "$directory"
# The crates that the target needs, by this machine's cargo: the other system has no network.
cargo fetch --locked --target aarch64-unknown-linux-gnu

target=aarch64-unknown-linux-gnu
export CUELIGHT_TEST_ROOT="$directory/root"
export CARGO_TARGET_DIR="$directory/target" CARGO_HOME="${CARGO_HOME:-$HOME/.cargo}" CARGO_NET_OFFLINE=true PATH=/usr/bin:/bin
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=gcc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CC=gcc CXX=g++ CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc CXX_aarch64_unknown_linux_gnu=aarch64-linux-gnu-g++

# The folder of a program is there in the other system.
printf '#!/bin/sh\nexec /usr/bin/cargo "$@"\n' > "$directory/cargo"
chmod +x "$directory/cargo"

# run CPU ARGUMENTS...: runs tests on an emulated CPU; the arguments are those of `cargo test`.
run() {
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu $1"
  echo "== $*"
  shift
  sh tests/run_in_root.sh "$directory/cargo" test --locked --target "$target" "$@"
}

if [ "$#" -gt 0 ]; then
  package="$1"
  shift
  run max -p "$package" --lib -- "$@"
  run cortex-a57 -p "$package" --lib -- "$@"
  exit
fi
# All kernels, then those that every CPU has.
run max -p cuelight-shaders --lib
run cortex-a57 -p cuelight-shaders --lib -- matmul:: roofline:: cpu:: lora:: attention::
run max -p cuelight-engine --lib -- --skip vulkan

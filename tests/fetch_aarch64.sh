#!/bin/sh
# Puts a compiler for aarch64 and an emulator of its CPUs into the given directory: Debian's Rust with the standard libraries of
# both, one for the tests and one for the programs that run while compiling, GCC and qemu. Exits with 3 where they cannot be had
# (see fetch_debian_root.sh).
set -eu
if [ "$(uname -m)" != x86_64 ]; then
  echo "no compiler for aarch64: this machine is not an x86-64 one" >&2
  exit 3
fi
# The first release whose Rust is new enough.
exec sh "$(dirname "$0")/fetch_debian_root.sh" "$1" "compiler for aarch64" forky arm64 \
  rustc cargo libstd-rust-dev libstd-rust-dev:arm64 gcc g++ gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user dash coreutils

#!/bin/sh
# Puts a compiler for aarch64 and an emulator of its CPUs into the given directory: Debian's Rust with the standard library for
# aarch64, GCC and qemu. They come with their C library, as a system of its own; run_in_root.sh runs a program in there.
#
# Exits with 3, and says why, where they cannot be had or used: no Debian on x86-64, no network, not root.
set -eu
directory="$1"
# The first release whose Rust is new enough.
release=forky
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

skip() {
  echo "no compiler for aarch64: $1" >&2
  exit 3
}

[ "$(id -u)" = 0 ] || skip "its own system needs root (unshare)"
[ -e "$directory/root/complete" ] && exit 0
for tool in apt-get dpkg unshare; do
  command -v "$tool" > /dev/null || skip "this machine has no $tool"
done
[ "$(dpkg --print-architecture)" = amd64 ] || skip "this machine is not an x86-64 one"
[ -e "$keyring" ] || skip "this machine has no keys of Debian's archive ($keyring)"

# The mirror that this machine uses.
mirror="$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/*$' | head -n 1)"
[ -n "$mirror" ] || skip "apt has no mirror of Debian here"

mkdir -p "$directory/apt/lists/partial" "$directory/apt/archives/partial"
cd "$directory"
echo "deb [signed-by=$keyring arch=amd64,arm64] $mirror $release main" > apt/sources.list
: > apt/status

# An apt that knows nothing of the packages installed here, and of nothing but this suite.
apt() {
  apt-get -qq -o Dir::Etc::sourcelist="$PWD/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$PWD/apt/lists" -o Dir::State::status="$PWD/apt/status" \
    -o Dir::Cache::archives="$PWD/apt/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
    -o APT::Architecture=amd64 -o APT::Architectures::=amd64 -o APT::Architectures::=arm64 \
    -o APT::Sandbox::User=root -o APT::Install-Recommends=false "$@"
}
apt update || skip "$mirror does not answer for $release"
# The standard libraries: one for the tests, one for the programs that run while compiling.
apt install --download-only --yes rustc cargo libstd-rust-dev libstd-rust-dev:arm64 gcc g++ gcc-aarch64-linux-gnu \
  g++-aarch64-linux-gnu qemu-user dash coreutils || skip "$release has no Rust for aarch64 to download"

rm -rf root
mkdir root
for package in apt/archives/*.deb; do
  dpkg -x "$package" root
done
rm -rf apt
: > root/complete

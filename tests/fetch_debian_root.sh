#!/bin/sh
# Puts packages of another release of Debian into the given directory, with their C library, as a system of its own in `root`.
# run_in_root.sh runs a program in there.
#
#     fetch_debian_root.sh DIRECTORY WHAT "SUITE..." "ARCHITECTURE..." PACKAGE...
#
# WHAT names the packages in messages. The last suite comes first where several have a package. Architectures are those besides
# this machine's.
#
# Exits with 3, and says why, where they cannot be had or used: no Debian, no network, not root.
set -eu
directory="$1" what="$2" suites="$3" others="$4"
shift 4
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
newest="${suites##* }"

skip() {
  echo "no $what: $1" >&2
  exit 3
}

[ "$(id -u)" = 0 ] || skip "its own system needs root (unshare)"
[ -e "$directory/root/complete" ] && exit 0
for tool in apt-get dpkg unshare; do
  command -v "$tool" > /dev/null || skip "this machine has no $tool"
done
[ -e "$keyring" ] || skip "this machine has no keys of Debian's archive ($keyring)"

# The mirror that this machine uses.
mirror="$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/*$' | head -n 1)"
[ -n "$mirror" ] || skip "apt has no mirror of Debian here"

mkdir -p "$directory/apt/lists/partial" "$directory/apt/archives/partial"
cd "$directory"
for suite in $suites; do
  echo "deb [signed-by=$keyring] $mirror $suite main"
done > apt/sources.list
for architecture in "$(dpkg --print-architecture)" $others; do
  echo "APT::Architectures:: \"$architecture\";"
done > apt/architectures.conf
: > apt/status

# An apt that knows nothing of the packages installed here, and of nothing but these suites.
apt() {
  APT_CONFIG="$PWD/apt/architectures.conf" apt-get -qq \
    -o Dir::Etc::sourcelist="$PWD/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$PWD/apt/lists" -o Dir::State::status="$PWD/apt/status" \
    -o Dir::Cache::archives="$PWD/apt/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
    -o APT::Sandbox::User=root -o APT::Install-Recommends=false "$@"
}
apt update || skip "$mirror does not answer for $newest"
apt install --download-only --yes --target-release "$newest" "$@" || skip "$newest has no such packages to download: $*"

rm -rf root
mkdir root
for package in apt/archives/*.deb; do
  dpkg -x "$package" root
done
# What the package base-files would bring: the paths of the loader and the shell.
for folder in bin lib lib64; do
  [ -e "root/$folder" ] || ln -s "usr/$folder" "root/$folder"
done
rm -rf apt
: > root/complete

#!/bin/sh
# Runs a program of this checkout in another system ($CUELIGHT_TEST_ROOT, from fetch_debian_root.sh), with its libraries and
# drivers: the runner of `cargo test`. Paths, working directory and exit status stay as they are, and no mount is left.
set -eu
checkout="$(cd "$(dirname "$0")/.." && pwd)"
exec unshare --mount sh -eu -c '
  root="$1" checkout="$2"
  shift 2
  for folder in /proc /dev /sys /tmp "$HOME" "$checkout" "$(dirname "$1")"; do
    mkdir -p "$root$folder"
    mount --rbind "$folder" "$root$folder"
  done
  exec unshare --root="$root" --wd="$PWD" "$@"
' "$0" "$CUELIGHT_TEST_ROOT" "$checkout" "$@"

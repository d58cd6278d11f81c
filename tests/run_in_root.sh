#!/bin/sh
# Runs a program of this checkout in another system's root ($CUELIGHT_TEST_ROOT, from fetch_newer_lavapipe.sh), with its libraries
# and drivers: the runner of `cargo test`. Paths, working directory and exit status stay as they are.
set -eu
exec unshare --mount sh -c '
  root="$1"
  here="$2"
  shift 2
  for folder in /proc /dev /sys /tmp "$HOME" "$here" "$(dirname "$(dirname "$1")")"; do
    mkdir -p "$root$folder"
    mount --rbind "$folder" "$root$folder"
  done
  exec unshare --root="$root" --wd="$here" "$@"
' runner "$CUELIGHT_TEST_ROOT" "$PWD" "$@"

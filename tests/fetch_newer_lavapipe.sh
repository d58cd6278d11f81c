#!/bin/sh
# Puts a newer lavapipe, Mesa's Vulkan driver for the CPU, into the given directory: one with cooperative matrices, which
# the system's own may lack. Exits with 3 where it cannot be had (see fetch_debian_root.sh).
set -eu
exec sh "$(dirname "$0")/fetch_debian_root.sh" "$1" "newer lavapipe" "trixie trixie-backports" "" \
  mesa-vulkan-drivers libvulkan1 vulkan-validationlayers

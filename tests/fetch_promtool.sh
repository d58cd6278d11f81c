#!/bin/sh
# Puts promtool, of Debian's package prometheus, into the given directory, without installing the server.
set -eu
directory="$1"
[ -x "$directory/usr/bin/promtool" ] && exit 0
mkdir -p "$directory"
cd "$directory"
apt-get download -qq prometheus 2>/dev/null || { apt-get update -qq && apt-get download -qq prometheus; }
dpkg -x prometheus_*.deb .
rm -f prometheus_*.deb usr/bin/prometheus

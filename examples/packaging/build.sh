#!/usr/bin/env bash
# Builds a package from a release binary, without a network:
#   build.sh tarball|deb|npm|wheel|formula [DIRECTORY]
# The packages are written to DIRECTORY (dist unless given). Environment:
#   CUELIGHT_BINARY   the binary (target/release/cuelight unless given)
#   CUELIGHT_TARGET   its target (that of rustc unless given)
#   CUELIGHT_RUN      a program that runs the binary, such as qemu-aarch64, if this machine cannot; for completions and pages
#   CUELIGHT_URL      where the archives of the release are, for formula
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
kind="${1:?tarball, deb, npm, wheel or formula}"
mkdir -p "${2:-dist}"
out="$(cd "${2:-dist}" && pwd)"
binary="${CUELIGHT_BINARY:-${CARGO_TARGET_DIR:-$root/target}/release/cuelight}"
target="${CUELIGHT_TARGET:-$(rustc -vV | sed -n 's/^host: //p')}"
version="$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")"
[ "$kind" = formula ] || [ -x "$binary" ] || { echo "no binary at $binary: run cargo build --release" >&2; exit 1; }
stage="$(mktemp -d)"
trap 'rm -rf "$stage"' EXIT

# install_tree PREFIX: the program, its completions, its manual pages and its licences, as below /usr.
install_tree() {
  local share="$1/share"
  install -D -m 755 "$binary" "$1/bin/cuelight"
  [[ "$target" != *linux* ]] || "${STRIP:-strip}" "$1/bin/cuelight"
  mkdir -p "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/site-functions" \
    "$share/fish/vendor_completions.d" "$share/doc/cuelight"
  # shellcheck disable=SC2086
  run() { ${CUELIGHT_RUN:-} "$binary" "$@"; }
  run completions bash > "$share/bash-completion/completions/cuelight"
  run completions zsh > "$share/zsh/site-functions/_cuelight"
  run completions fish > "$share/fish/vendor_completions.d/cuelight.fish"
  run man "$share/man/man1"
  cp "$root/LICENSE-MIT" "$root/LICENSE-APACHE" "$share/doc/cuelight/"
}

# fill FILE: the template with the version.
fill() { sed -e "s|@VERSION@|$version|g" -e "s|@ROOT@|$root|g" "$1"; }

# The newest glibc that the binary needs, for the packages that name it.
glibc() { objdump -T "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 | cut -d _ -f 2; }

build_tarball() {
  install_tree "$stage/cuelight-$target"
  tar -C "$stage" --owner 0 --group 0 -czf "$out/cuelight-$target.tar.gz" "cuelight-$target"
  (cd "$out" && sha256sum "cuelight-$target.tar.gz" > "cuelight-$target.tar.gz.sha256")
}

build_deb() {
  local architecture package="$stage/deb"
  case "$target" in x86_64-*) architecture=amd64 ;; aarch64-*) architecture=arm64 ;; *) echo "no .deb for $target" >&2; exit 1 ;; esac
  install_tree "$package/usr"
  # Debian has another folder for zsh, and compressed pages.
  mv "$package/usr/share/zsh/site-functions" "$package/usr/share/zsh/vendor-completions"
  gzip -9n "$package"/usr/share/man/man1/*
  mkdir -p "$package/DEBIAN" "$package/usr/lib/systemd/system"
  cp "$here/debian/copyright" "$package/usr/share/doc/cuelight/"
  sed 's|/usr/local/bin/|/usr/bin/|; s|^# /etc/systemd.*|# systemctl enable --now cuelight|' \
    "$root/docs/operations/cuelight.service" > "$package/usr/lib/systemd/system/cuelight.service"
  install -D -m 644 "$here/debian/config.toml" "$package/etc/cuelight/config.toml"
  echo /etc/cuelight/config.toml > "$package/DEBIAN/conffiles"
  fill "$here/debian/control" | sed -e "s/@ARCHITECTURE@/$architecture/" -e "s/@GLIBC@/$(glibc)/" \
    -e "s/@SIZE@/$(du -sk "$package/usr" | cut -f 1)/" > "$package/DEBIAN/control"
  chmod -R u=rwX,go=rX "$package"
  dpkg-deb --root-owner-group -Zxz --build "$package" "$out/cuelight_${version}_$architecture.deb"
}

build_npm() {
  local platform
  case "$target" in
    x86_64-*linux*) platform=linux-x64 ;;
    aarch64-*linux*) platform=linux-arm64 ;;
    x86_64-*darwin) platform=darwin-x64 ;;
    aarch64-*darwin) platform=darwin-arm64 ;;
    *) echo "no npm package for $target" >&2; exit 1 ;;
  esac
  mkdir -p "$stage/cuelight/bin" "$stage/$platform/bin"
  fill "$here/npm/package.json" > "$stage/cuelight/package.json"
  cp "$here/npm/cuelight.js" "$stage/cuelight/bin/cuelight.js"
  fill "$here/npm/platform.json" | sed -e "s/@PLATFORM@/$platform/" -e "s/@OS@/${platform%-*}/" -e "s/@CPU@/${platform#*-}/" \
    > "$stage/$platform/package.json"
  install_tree "$stage/tree"
  cp "$stage/tree/bin/cuelight" "$stage/$platform/bin/"
  for package in cuelight "$platform"; do
    cp "$root/LICENSE-MIT" "$root/LICENSE-APACHE" "$stage/$package/"
    npm pack --silent --offline --pack-destination "$out" "$stage/$package"
  done
}

# maturin runs cargo, which has nothing to compile after `cargo build --release`.
build_wheel() {
  install_tree "$stage/tree"
  mkdir -p "$stage/python/extra/data"
  mv "$stage/tree/share" "$stage/python/extra/data/share"
  fill "$here/python/pyproject.toml" > "$stage/python/pyproject.toml"
  cp "$here/python/README.md" "$root/LICENSE-MIT" "$root/LICENSE-APACHE" "$stage/python/"
  # shellcheck disable=SC2086
  (cd "$stage/python" && "${MATURIN:-maturin}" build --release --locked --strip --out "$out" ${CUELIGHT_MATURIN:-})
}

# Needs the archives of all platforms with their checksums in DIRECTORY.
build_formula() {
  local script="" platform name
  for platform in aarch64-apple-darwin aarch64-unknown-linux-gnu x86_64-unknown-linux-gnu; do
    name="@SHA256_$(tr a-z- A-Z_ <<< "$platform")@"
    script+="s|$name|$(cut -d ' ' -f 1 "$out/cuelight-$platform.tar.gz.sha256")|;"
  done
  fill "$here/cuelight.rb" | sed -e "s|@URL@|${CUELIGHT_URL:?where the archives are}|g" -e "$script" > "$out/cuelight.rb"
}

case "$kind" in
  tarball | deb | npm | wheel | formula) "build_$kind" ;;
  *) echo "unknown package: $kind" >&2; exit 2 ;;
esac

#!/usr/bin/env bash
# Installs a package as a user would, and runs the demo from it:
#   test.sh wheel|npm|deb PACKAGE...
# wheel: a fresh venv. npm: an empty folder. deb: a new Debian root (as root, with debootstrap from MIRROR, or a copy of ROOT).
# The demo's answer must come within LIMIT_S seconds (20 unless set) of the start of the installation. A model that was
# downloaded before is used, so that the time of a download of 94 MiB is not measured.
set -euo pipefail
# Mounts below the Debian root end with this process.
if [ "${1:-}" = deb ] && [ -z "${IN_NAMESPACE:-}" ]; then IN_NAMESPACE=1 exec unshare --mount "$0" "$@"; fi
kind="${1:?wheel, npm or deb}"
shift
limit="${LIMIT_S:-20}"
work="$(mktemp -d)"
trap 'rm -rf --one-file-system "$work"' EXIT

now() { date +%s.%N; }
took() { python3 -c 'import sys; print(f"{float(sys.argv[2]) - float(sys.argv[1]):.1f}")' "$1" "$(now)"; }

# answer COMMAND...: runs the demo with this program, and checks that it answers in time.
answer() {
  local text
  "$@" --version
  text="$("$@" run demo "Why is the sky blue?" --temp 0 --max-tokens 1)"
  seconds="$(took "$started")"
  [ -n "$text" ] || { echo "the demo gave no answer"; exit 1; }
  echo "$kind: $seconds s from the start of the installation to the first token"
  python3 -c 'import sys; sys.exit(float(sys.argv[1]) > float(sys.argv[2]))' "$seconds" "$limit" \
    || { echo "that is more than $limit s"; exit 1; }
}

test_wheel() {
  started="$(now)"
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --no-index --disable-pip-version-check "$@"
  answer "$work/venv/bin/cuelight"
  test -s "$work/venv/share/man/man1/cuelight.1"
}

test_npm() {
  started="$(now)"
  # The packages are given as files, because the registry does not have them.
  npm install --silent --offline --no-audit --no-fund --prefix "$work" "$@"
  answer npx --prefix "$work" cuelight
}

test_deb() {
  local root="$work/root" cache="${XDG_CACHE_HOME:-$HOME/.cache}/cuelight"
  if [ -n "${ROOT:-}" ]; then
    cp -a "$ROOT" "$root"
  else
    debootstrap --variant=minbase "${SUITE:-stable}" "$root" ${MIRROR:+"$MIRROR"} > "$work/debootstrap.log" \
      || { tail -n 3 "$work/debootstrap.log"; exit 1; }
  fi
  mkdir -p "$root/root/.cache/cuelight"
  if [ -d "$cache/demo" ]; then cp -r "$cache/demo" "$root/root/.cache/cuelight/"; fi
  cp "$1" "$root/cuelight.deb"
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  trap 'umount "$work/root/proc" "$work/root/sys"; rm -rf --one-file-system "$work"' EXIT
  started="$(now)"
  chroot "$root" apt-get install -y -qq --no-install-recommends /cuelight.deb > "$work/apt.log" 2>&1 \
    || { tail -n 5 "$work/apt.log"; exit 1; }
  answer chroot "$root" cuelight
  chroot "$root" sh -c 'test -s /usr/share/man/man1/cuelight.1.gz -a -s /usr/lib/systemd/system/cuelight.service'
  chroot "$root" apt-get purge -y -qq cuelight > /dev/null
  test ! -e "$root/usr/bin/cuelight"
}

case "$kind" in
  wheel | npm | deb) "test_$kind" "$@" ;;
  *) echo "unknown package: $kind" >&2; exit 2 ;;
esac

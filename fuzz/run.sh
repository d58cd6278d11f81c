#!/usr/bin/env bash
# Coverage-guided fuzzing: builds the targets once, then runs them, two at a time, from the committed corpus.
#
#   fuzz/run.sh SECONDS [TARGET...]        all targets without names; 0 seconds only builds
#
# New inputs go to the folder "found" next to the build, never to the corpus. An input that fails is kept there as
# TARGET-crash-..., and the script fails. CUELIGHT_FUZZ_JOBS changes how many run at a time.
set -euo pipefail
cd "$(dirname "$0")"
seconds="${1:?usage: fuzz/run.sh SECONDS [TARGET...]}"
shift
[ "$#" -gt 0 ] || set -- $(ls corpus)
host="$(rustc -vV | sed -n 's/^host: //p')"
build="${CARGO_TARGET_DIR:-$PWD/../target}/fuzz"
found="$build/found"

# The flags of cargo-fuzz for libFuzzer, without a sanitizer: bounds and overflows are checked by the code itself. The variable
# lets the stable compiler accept the pass; it applies to the target only, so build scripts stay as they are.
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
  -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
RUSTC_BOOTSTRAP=1 RUSTFLAGS="$(echo $coverage)" CARGO_TARGET_DIR="$build" \
  cargo build --release --locked --target "$host"
[ "$seconds" -gt 0 ] || exit 0

# Deep templates need more stack than a main thread has; rendering in the server has a process with as much.
ulimit -s 65536 || true
run() {
  local target="$1" log="$found/$1.log" status=0
  mkdir -p "$found/$target"
  CUELIGHT_FUZZ_TARGET="$target" "$build/$host/release/fuzz" "$found/$target" "corpus/$target" \
    -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -max_len=8192 -len_control=0 -print_final_stats=1 \
    -artifact_prefix="$found/$target-" >"$log" 2>&1 || status=$?
  if [ "$status" -ne 0 ]; then
    printf '**** %s failed:\n' "$target"
    tail -n 60 "$log"
    return 1
  fi
  local covered executions
  covered="$(grep -aoE 'cov: [0-9]+ ft: [0-9]+' "$log" | tail -n 1)"
  executions="$(sed -n 's/^stat::number_of_executed_units: //p' "$log")"
  printf '%-18s %10s executions  %s\n' "$target" "$executions" "$covered"
}
export -f run
export seconds build found host
printf '%s\n' "$@" | xargs -n 1 -P "${CUELIGHT_FUZZ_JOBS:-2}" bash -c 'run "$0"'

#!/usr/bin/env bash
# Runs the Vulkan tests on a lavapipe with cooperative matrices, which is put into the given directory.
# Exits with 3 where it cannot be had (see fetch_newer_lavapipe.sh).
set -euo pipefail
mkdir -p "$1"
directory="$(cd "$1" && pwd)"
cd "$(dirname "$0")/.."
sh tests/fetch_newer_lavapipe.sh "$directory"

# In that root lavapipe is the only device; GPUs of this machine are not used.
export CUELIGHT_TEST_ROOT="$directory/root"
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$PWD/tests/run_in_root.sh"
export VK_DRIVER_FILES=/usr/share/vulkan/icd.d/lvp_icd.json
# Without it this layer sees nothing of what shaders reach by address.
export VK_LAYER_SYNCVAL_SHADER_ACCESSES_HEURISTIC=1
log="$directory/tests.log"
# Tests of a part of what the slow tier tests whole are left out; `cargo test` runs them on the usual device.
parts=(--skip small_ops --skip linear_computes --skip attention_computes --skip routes_and_experts --skip fused_ops_compute
  --skip other_workgroup --skip float32_cache)
# The longest tests, one of them a day. The others check every kernel of matrices.
longest=(all_workgroup_shapes every_case half_of_the_checkpoints)
day=$((${CUELIGHT_TEST_SEED:-$(date +%s) / 86400} % ${#longest[@]}))
for index in "${!longest[@]}"; do
  [ "$index" -eq "$day" ] || parts+=(--skip "${longest[$index]}")
done
# With the package of the binary, so that what the other tests have compiled is used.
cargo test --locked -p cuelight -p cuelight-engine --lib vulkan -- --nocapture --include-ignored "${parts[@]}" 2>&1 | tee "$log"
cargo test --locked --test vulkan -- --nocapture --include-ignored "${parts[@]}" 2>&1 | tee -a "$log"
if grep -n SKIPPED "$log"; then
  echo "a test found no device, or none with matrices, where there should be one" >&2
  exit 1
fi

#!/usr/bin/env bash
# Runs the Vulkan tests of matrices on a lavapipe with cooperative matrices, which is put into the given directory.
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
# The tests in which matrices are used, and the longest tests of the slow tier: one line of these a day. `cargo test` runs the
# others on the usual device.
turns=(
  "linear_with_float16_matrices tests::matmul float16_cache"
  "every_case_of_products"
  "attention_with_float16_matrices tests::attention tiles_of_every_height a_context_of_many_blocks"
  "every_case_of_attention"
  "linear_with_float16_matrices tests::matmul float16_cache"
  "every_case_of_experts"
  "attention_with_float16_matrices tests::attention tiles_of_every_height a_context_of_many_blocks"
  "every_case_of_fusion"
  "linear_with_float16_matrices tests::matmul float16_cache"
  "all_workgroup_shapes"
  "attention_with_float16_matrices tests::attention tiles_of_every_height a_context_of_many_blocks"
  "a_third_of_the_checkpoints"
)
day=$((${CUELIGHT_TEST_SEED:-$(date +%s) / 86400}))
read -ra names <<< "${turns[$((day % ${#turns[@]}))]}"
# With the package of the binary, so that what the other tests have compiled is used.
cargo test --locked -p cuelight -p cuelight-engine --lib --test vulkan -- --nocapture --include-ignored "${names[@]}" 2>&1 | tee "$log"
for name in "${names[@]}"; do
  grep -q "^test .*$name" "$log" || { echo "no test has the name $name" >&2; exit 1; }
done
if grep -n SKIPPED "$log"; then
  echo "a test found no device, or none with matrices, where there should be one" >&2
  exit 1
fi

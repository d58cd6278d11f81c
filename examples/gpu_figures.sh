#!/usr/bin/env bash
# Measures a GPU: whether its results are correct, its peak throughput, and the speed of models with random weights on it.
#
#   examples/gpu_figures.sh [FOLDER]
#
# Writes into FOLDER (gpu-figures): devices.txt and .json, tests.txt, ops.md, and a table for each model and test. Needs no Rust, only a
# stripped release binary and a Vulkan driver with its loader. docs/perf/gpu.md describes how to install both on a bare machine,
# and what the figures are compared with.
#
#   CUELIGHT=target/release/cuelight   the program
#   TESTS=                             the engine's test program (cargo test --release --no-run -p cuelight-engine), for its tests and
#                                      the times of single ops; optional
#   DEVICE=vulkan:0
#   MODELS="llama-8b:q4_k_m ..."       names for `cuelight bench --synthetic`
#   SEQUENCES="1,8,32,64,256"          numbers of concurrent sequences
#   DEPTHS="0,4096,16384"
#   MOE="qwen3-30b-a3b:q4_k_m"         a mixture-of-experts model, written to FOLDER (18 GB) and served; empty: none
#   VRAM="24GiB 12GiB 8GiB 6GiB"       limits of device memory for it
set -euo pipefail

out="${1:-gpu-figures}"
cuelight="${CUELIGHT:-target/release/cuelight}"
device="${DEVICE:-vulkan:0}"
models="${MODELS:-llama-8b:q4_k_m llama-8b:q8_0 llama-8b:f16 qwen3-8b:q4_k_m qwen3-8b:q8_0 qwen3-8b:f16}"
sequences="${SEQUENCES:-1,8,32,64,256}"
depths="${DEPTHS:-0,4096,16384}"
prompts="${PROMPTS:-512,2048}"

moe="${MOE-qwen3-30b-a3b:q4_k_m}"
vram="${VRAM:-24GiB 12GiB 8GiB 6GiB}"
# GiB of that for everything except experts: other weights, the KV cache, activations.
cache_reserve=3

command -v "$cuelight" >/dev/null || { echo "there is no $cuelight; set CUELIGHT"; exit 1; }
mkdir -p "$out"
"$cuelight" devices 2>&1 | tee "$out/devices.txt"
"$cuelight" devices --json > "$out/devices.json"

if [ -n "${TESTS:-}" ]; then
  echo "== correctness"
  # A device that fails is not measured: its figures would mean nothing.
  "$TESTS" vulkan --nocapture 2>&1 | tee "$out/tests.txt"
  echo "== single ops"
  "$TESTS" how_long_products --ignored --nocapture 2>&1 | tee "$out/ops.md"
else
  echo "no TESTS given: the results of the device are not checked" | tee "$out/tests.txt"
fi

# bench NAME ARGUMENT...
bench() {
  local name="$1"
  shift
  echo "== $name: $*"
  "$cuelight" bench --device "$device" "$@" | tee "$out/$name.md"
}

for model in $models; do
  name="${model//:/-}"
  # Prompts, then one sequence at several depths; with the time of each op compared with the device's peak throughput.
  bench "$name-prompts" --synthetic "$model" -p "$prompts" -n 0 -b 2048 -r 3 --roofline --profile
  bench "$name-depths" --synthetic "$model" -p 0 -n 64 -d "$depths" -r 3 --roofline --profile
  # Many sequences with short contexts.
  bench "$name-sequences" --synthetic "$model" -p 0 -n 32 --parallel "$sequences" -r 3
done
# A mixture-of-experts model with less and less device memory: placement, speed, and overlap of device and CPU.
address=127.0.0.1:8123
serve_and_measure() {
  local name="$1"
  shift
  "$cuelight" serve "$out/moe.gguf" --device "$device" --port "${address##*:}" --ctx-size 4096 \
    --trace-file "$out/$name-trace.json" "$@" > "$out/$name-server.txt" 2>&1 &
  local server=$!
  for _ in $(seq 600); do
    if ! kill -0 "$server" 2>/dev/null; then
      echo "$name: the server ended: $(tail -n 1 "$out/$name-server.txt")"
      return
    fi
    (exec 3<>"/dev/tcp/${address/:/\/}") 2>/dev/null && break
    sleep 1
  done
  for clients in 1 8; do
    "$cuelight" bench serve "http://$address" -c "$clients" -n $((4 * clients)) --prompt-tokens 512 --output-tokens 64 \
      -o md | tee "$out/$name-$clients-clients.md"
  done
  exec 3<>"/dev/tcp/${address/:/\/}"
  printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
  cat <&3 > "$out/$name-metrics.txt"
  exec 3>&-
  kill -INT "$server"
  wait "$server" || true
}

if [ -n "$moe" ]; then
  [ -e "$out/moe.gguf" ] || "$cuelight" bench --synthetic "$moe" --write "$out/moe.gguf" -p 0 -n 0
  bench moe-resident "$out/moe.gguf" -p "$prompts" -n 64 -r 3 --roofline --profile
  for size in $vram; do
    # Long prompts with experts on the CPU, and with all experts streamed to the device for each chunk.
    cache="$((${size%GiB} - cache_reserve))GiB"
    for streaming in off 1 auto; do
      bench "moe-$size-streaming-$streaming" "$out/moe.gguf" --vram "$size" --cpu-experts all --expert-cache "$cache" \
        --expert-streaming "$streaming" -p 128,512,2048,4096 -b 4096 -n 32 -r 3
    done
    echo "== $moe with $size"
    serve_and_measure "moe-$size-overlap" --vram "$size"
    serve_and_measure "moe-$size-sequential" --vram "$size" --overlap off
    # All experts on the CPU, and most of the device memory as expert cache.
    serve_and_measure "moe-$size-cache" --vram "$size" --cpu-experts all --expert-cache "$cache"
  done
fi
echo "done: $out"

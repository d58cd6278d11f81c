#!/bin/sh
# Unpacks llama.cpp's vocabulary files with their expected tokens, and its chat templates, from the source package of
# llama-cpp-python, as the package index of this machine's pip has it.
# usage: fetch_vocabularies.sh FOLDER
set -eu
folder="$1"
version=0.3.36
[ -e "$folder/models/ggml-vocab-gpt-2.gguf.out" ] && exit 0
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
# pip asks the package for its metadata, but builds nothing.
python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$work" "llama-cpp-python==$version"
archive="$work/llama_cpp_python-$version.tar.gz"
[ -e "$archive" ] || { echo "pip could not download llama-cpp-python $version" >&2; exit 1; }
mkdir -p "$folder"
tar -xzf "$archive" -C "$folder" --strip-components=3 "llama_cpp_python-$version/vendor/llama.cpp/models"

#!/usr/bin/env bash
# From a fresh Debian 12 machine to a fine-tuned model, everything made here: installs packages, builds, makes a small model
# and a small dataset, samples from the model, trains it with 2 servers and 2 workers, samples again, and leaves a
# Hugging Face checkpoint. Training itself takes under two minutes on two cores. Can be run again; it starts over.
#
#   scripts/quickstart.sh [FOLDER]      where models, data and checkpoints go (default: quickstart-run)
set -euo pipefail
cd "$(dirname "$0")/.."
run=${1:-quickstart-run}
jobs=$(nproc)
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; else bold='' plain=''; fi

stage() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }

stage "1. Debian packages"
scripts/install-dependencies.sh
echo "all there"

stage "2. Build (a few minutes the first time)"
export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$PWD
mkdir -p build
cmake --preset release >build/quickstart-configure.log || { cat build/quickstart-configure.log >&2; exit 1; }
cmake --build --preset release -j "$jobs" --target shoal shoal-coordinator shoal-server shoal-worker
shoal=$PWD/build/release/bin/shoal
"$shoal" --version

stage "3. Data, tokenizer and model, from seeds"
rm -rf "$run"
mkdir -p "$run"
cd "$run"

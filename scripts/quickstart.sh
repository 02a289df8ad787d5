#!/usr/bin/env bash
# From a fresh Debian 12 machine to a fine-tuned model, everything made here: installs packages,
# builds, makes a dataset, a tokenizer and a small model from seeds, samples from the model, trains
# it with 2 servers and 2 workers, samples again, and leaves a Hugging Face folder. Training takes
# under two minutes on two cores. Can be run again; it starts over.
#
#   scripts/quickstart.sh [FOLDER]      where models, data and checkpoints go (default:
#   quickstart-run)
set -euo pipefail
cd "$(dirname "$0")/.."
run=${1:-quickstart-run}
jobs=$(nproc)
bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
stage() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }

stage "1. Debian packages"
scripts/install-dependencies.sh
echo "all there"

stage "2. Build (some minutes the first time)"
cmake --preset release >/dev/null
cmake --build --preset release -j "$jobs" --target shoal shoal-coordinator shoal-server shoal-worker
shoal=build/release/bin/shoal
"$shoal" --version

stage "3. Data, tokenizer and model, from seeds"
mkdir -p "$run"
rm -rf "$run/model" "$run/tokenizer" "$run/checkpoints"
# Conversations of small sums, sorting and looking things up: short ones, and a few long ones.
"$shoal" data synth --kind mixed --samples 20000 --seed 1 --output "$run/train.jsonl"
"$shoal" data synth --kind mixed --samples 200 --seed 2 --output "$run/test.jsonl"
"$shoal" data tokenizer "$run/train.jsonl" --vocabulary 512 --output "$run/tokenizer"
"$shoal" model init --shape examples/quickstart-model.json --seed 1 --tokenizer "$run/tokenizer" \
  --output "$run/model"
echo
"$shoal" data inspect "$run/test.jsonl" --model "$run/model" --template chatml

questions=("Sort 4 1 3." "What is 3 + 4?" "Ana has 3 cups. Ben has 5 pens. Who has pens?")
sample() {  # model folder
  for question in "${questions[@]}"; do
    printf '  %-50s ' "$question"
    "$shoal" generate --model "$1" --chat --prompt "$question" --max-new-tokens 12 \
      --temperature 0.3 | tr '\n' ' '
    echo
  done
  "$shoal" eval --model "$1" --data "$run/test.jsonl" --template chatml --answers 40 \
    --max-new-tokens 16
}

stage "4. What the model says before training (random weights)"
sample "$run/model"

stage "5. Training: 2 servers, 2 workers"
"$shoal" train examples/quickstart.yaml --set "model=$run/model" \
  --set "data.train=$run/train.jsonl" --set "checkpoint.directory=$run/checkpoints"

stage "6. What it says now"
sample "$run/checkpoints/huggingface"

stage "Done"
model=$run/checkpoints/huggingface
cat <<DONE
model (Hugging Face form):  $model
try:                        $shoal generate --chat --model $model --prompt "Sort 9 2 5 7."
what the job needs:         $shoal plan examples/quickstart.yaml
DONE

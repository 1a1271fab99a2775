#!/usr/bin/env bash
# From a fresh clone to a trained model in one command: installs what is missing, builds, makes the corpus, trains step 1 (data
# parallelism) on 4 ranks for about two minutes on two cores, and prints a sample of text from the trained model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ $# -gt 0 ]; then
  echo "usage: scripts/quickstart.sh (no options; it shows each command that it runs)" >&2
  exit 2
fi

out=runs/quickstart
train=(scripts/launch -n 4 step01_dp
  --model tiny --data data/kjv.txt --dp-mode overlapped
  --micro-batch-size 4 --seq-length 256 --steps 600
  --learning-rate 3e-3 --lr-schedule cosine --warmup-steps 50
  --eval-every 100 --eval-steps 4 --log-every 20
  --metrics "$out/metrics.jsonl" --export "$out/model")
generate=(build/cpu/bin/generate --model "$out/model" --prompt "And God said, " --tokens 500 --context 256 --temperature 0.7 --top-k 40 --seed 1)

# Shows a command in a form that can be pasted, then runs it.
show() {
  printf '\n$'
  printf ' %q' "$@"
  printf '\n'
  "$@"
}

source scripts/setup.sh
escalera_setup

show cmake --preset cpu
show cmake --build --preset cpu --target step01_dp generate -j "$(escalera_jobs)"
show scripts/make_corpus.sh
mkdir -p "$out"
show "${train[@]}"
show "${generate[@]}"

cat <<TEXT

That was four ranks training one model: each computed gradients on its own part of every batch, and they were summed. What next?
  step01_dp/README.md     how it works, what to look at in the output above, and what can go wrong
  scripts/test.sh         proves that four ranks compute what one would have (and everything else that is claimed)
  scripts/launch -n 4 step01_dp --help
                          every option; try --dp-mode naive, or --trace trace.json and open it in ui.perfetto.dev
  build/cpu/bin/generate --model $out/model --prompt "In the beginning "
                          more from the model that you just trained
TEXT

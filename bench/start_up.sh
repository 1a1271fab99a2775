#!/usr/bin/env bash
# How long until a newcomer sees something: seconds from the command to the line of the first step, tiny model, default batch.
# The aim is under 2 s on 4 ranks. Timed, not tested: on a busy machine it says more about the others.
#
#   bench/start_up.sh [RANKS [RUNS]]     default: 4 ranks, 7 runs; prints each and the median
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

ranks=${1:-4}
runs=${2:-7}
scripts/launch -n 1 step01_dp --help > /dev/null  # builds it if it is not there, and warms the file cache

# Microseconds since the epoch: whole numbers, which is all that bash can subtract.
now() { echo "${EPOCHREALTIME//[.,]/}"; }

times=()
for ((run = 0; run < runs; run++)); do
  begin=$(now)
  first=
  while read -r line; do
    if [[ $line == "step 1 |"* ]]; then first=$(now); fi
  done < <(scripts/launch -n "$ranks" step01_dp --model tiny --steps 100 --stop-after 1)
  [ -n "$first" ] || { echo "start_up.sh: there was no first step" >&2; exit 1; }
  times+=($((first - begin)))
done

sorted=$(printf '%s\n' "${times[@]}" | sort -n)
printf '%s\n' "${times[@]}" | awk '{ printf "%.2f s\n", $1 / 1e6 }'
awk 'NR == int((n + 1) / 2) { printf "median %.2f s from the command to the first step\n", $1 / 1e6 }' n="$runs" <<< "$sorted"

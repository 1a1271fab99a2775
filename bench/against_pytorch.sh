#!/usr/bin/env bash
# Whole training steps of step 1 against PyTorch on this machine's CPU, run in turns.
#
#   bench/peers/setup.sh                         once: PyTorch into build/peer-venv
#   bench/against_pytorch.sh                     everything; results in bench/results/
#   bench/against_pytorch.sh --only tiny --rounds 3
#   bench/against_pytorch.sh --help
set -euo pipefail
command -v python3 >/dev/null || { echo "against_pytorch.sh: python3 is missing (apt install python3)" >&2; exit 1; }
exec python3 "$(dirname "$0")/against_pytorch.py" "$@"

#!/usr/bin/env bash
# Makes build/peer-venv, the Python environment of the PyTorch peer, with the newest PyTorch from PyPI (several GB, since
# the wheel carries the CUDA libraries that we do not use), and installs the allocator that PyTorch is fastest with.
#
#   bench/peers/setup.sh                         make it, or bring it up to date
#   PEER_PYTHON=/path/to/python bench/...        use a Python that has torch instead; then there is nothing to set up
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=$(cd "$here/../.." && pwd)/build/peer-venv

if [[ -n ${PEER_PYTHON:-} ]]; then
    "$PEER_PYTHON" -c 'import torch; print("using torch", torch.__version__)' ||
        { echo "setup.sh: PEER_PYTHON=$PEER_PYTHON has no torch" >&2; exit 1; }
    exit 0
fi

command -v python3 >/dev/null || { echo "setup.sh: python3 is missing (apt install python3 python3-venv)" >&2; exit 1; }
if [[ ! -x $venv/bin/pip ]]; then
    python3 -m venv "$venv" || { echo "setup.sh: could not make $venv (apt install python3-venv)" >&2; exit 1; }
fi
"$venv/bin/pip" install --quiet --upgrade --requirement "$here/requirements.txt"

# Without these the comparison still runs, in the best environment that is left.
if ! /sbin/ldconfig -p | grep -q 'libtcmalloc_minimal\.so\.4'; then
    sudo=()
    [[ $(id -u) -eq 0 ]] || sudo=(sudo)
    echo "installing libtcmalloc-minimal4 with apt"
    "${sudo[@]}" apt-get install -y -qq libtcmalloc-minimal4 >/dev/null ||
        echo "setup.sh: could not install libtcmalloc-minimal4; PyTorch will run on the system's allocator" >&2
fi
"$venv/bin/python" -c 'import torch; print("torch", torch.__version__, "in '"$venv"'")'

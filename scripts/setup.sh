#!/usr/bin/env bash
# Installs what Escalera needs on Debian 12/13 and Ubuntu 22.04/24.04, and nothing that is there already.
# On another system it prints what is missing and stops: the names below are what to look for in that system's packages.
#
#   scripts/setup.sh          compiler, CMake, libraries, the text to train on
#   scripts/setup.sh --docs   also Doxygen and Graphviz
#
# quickstart.sh and test.sh source this file and call escalera_setup, so that both stand on the same ground.

set -euo pipefail
escalera_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

escalera_required=(
  g++ cmake ninja-build
  libopenmpi-dev openmpi-bin
  libeigen3-dev libfmt-dev libcli11-dev nlohmann-json3-dev
  libgtest-dev libbenchmark-dev
  bible-kjv
)
# Used where the distribution has it: without oneDNN, matrix products go through Eigen; ccache saves building twice what the
# presets have in common.
escalera_optional=(libdnnl-dev ccache)
escalera_docs=(doxygen graphviz)
escalera_cmake_minimum=3.25

escalera_installed() { # package
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2> /dev/null || true)" = installed ]
}

# True if version $1 is at least version $2.
escalera_at_least() {
  [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

# Version of the cmake in PATH, or nothing.
escalera_cmake_version() {
  { cmake --version 2> /dev/null || true; } | sed -n 's/^cmake version \([0-9.]*\).*/\1/p'
}

escalera_apt() { # apt-get arguments
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo > /dev/null; then
      echo "setup: installing packages needs root, and there is no sudo. As root, run: apt-get $*" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 "$@"
}

# For a system that we do not know: programs and headers are looked for themselves, since package names differ.
escalera_report_missing() {
  local missing=() name header
  for name in g++ cmake ninja mpicxx mpirun bible; do
    command -v "$name" > /dev/null || missing+=("program $name")
  done
  for header in eigen3/Eigen/Core fmt/core.h CLI/CLI.hpp nlohmann/json.hpp gtest/gtest.h; do
    [ -e "/usr/include/$header" ] || [ -e "/usr/local/include/$header" ] || missing+=("header $header")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    echo "setup: this system is neither Debian 12/13 nor Ubuntu 22.04/24.04, so nothing is installed. Not found here:" >&2
    printf '  %s\n' "${missing[@]}" >&2
    echo "setup: on Debian these come from the packages: ${escalera_required[*]} ${escalera_optional[*]}" >&2
    echo "setup: once they are there, build by hand: cmake --preset cpu && cmake --build --preset cpu" >&2
    return 1
  fi
}

# Ubuntu 22.04 has CMake 3.22. A newer one from the Python package index goes into a virtual environment inside build/, where
# it disturbs nothing else and goes away with the build folder.
escalera_newer_cmake() {
  local venv=$escalera_root/build/tools/cmake
  PATH=$venv/bin:$PATH
  hash -r
  if ! escalera_at_least "$(escalera_cmake_version)" "$escalera_cmake_minimum"; then
    echo "setup: CMake here is older than $escalera_cmake_minimum; installing a newer one into build/tools/cmake"
    if ! python3 -c 'import ensurepip, venv' 2> /dev/null; then
      echo "setup: installing python3-venv"
      escalera_apt install --no-install-recommends python3-venv > /dev/null
    fi
    python3 -m venv "$venv"
    if ! "$venv/bin/pip" install --quiet --disable-pip-version-check 'cmake>=3.25,<4'; then
      echo "setup: that did not work. Install CMake $escalera_cmake_minimum or newer by hand, put it in PATH, and run this again." >&2
      return 1
    fi
    hash -r
    echo "setup: installed CMake $(escalera_cmake_version)"
  fi
}

escalera_setup() {
  local wanted=("${escalera_required[@]}") package missing=() system="unknown system"
  if [ "${1:-}" = --docs ]; then
    wanted+=("${escalera_docs[@]}")
  fi
  if [ -r /etc/os-release ]; then
    # Debian's testing and unstable have no VERSION_ID.
    system=$(. /etc/os-release && echo "${ID:-unknown} ${VERSION_ID:-}")
  fi

  case $system in
    "debian 12" | "debian 13" | "ubuntu 22.04" | "ubuntu 24.04") ;;
    *)
      echo "setup: found $system"
      escalera_report_missing || return 1
      escalera_at_least "$(escalera_cmake_version)" "$escalera_cmake_minimum" || escalera_newer_cmake
      return
      ;;
  esac

  for package in "${wanted[@]}" "${escalera_optional[@]}"; do
    escalera_installed "$package" || missing+=("$package")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    # A fresh container knows no packages at all, so the lists come first; only then can one ask what the distribution has.
    echo "setup: reading package lists"
    escalera_apt update > /dev/null
    local available=()
    for package in "${missing[@]}"; do
      if [[ " ${escalera_optional[*]} " == *" $package "* ]] && ! apt-cache show "$package" > /dev/null 2>&1; then
        echo "setup: $system has no $package; going on without it"
      else
        available+=("$package")
      fi
    done
    if [ ${#available[@]} -gt 0 ]; then
      echo "setup: installing ${available[*]}"
      # apt's own lines matter only if it fails.
      local log
      log=$(mktemp)
      if ! escalera_apt install --no-install-recommends "${available[@]}" > "$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        echo "setup: apt-get could not install them" >&2
        return 1
      fi
      rm -f "$log"
      echo "setup: installed ${available[*]}"
    fi
  else
    echo "setup: everything needed is installed"
  fi
  escalera_at_least "$(escalera_cmake_version)" "$escalera_cmake_minimum" || escalera_newer_cmake
}

# The CUDA toolkit is never installed here: it is large, and NVIDIA's own packages belong to the driver of a machine.
escalera_has_nvcc() {
  command -v nvcc > /dev/null || [ -x /usr/local/cuda/bin/nvcc ]
}

escalera_has_cuda_headers() {
  local nvcc
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  [ -e "$(dirname "$nvcc")/../include/cublasLt.h" ] || [ -e /usr/include/cublasLt.h ]
}

escalera_has_gpu() {
  [ -n "$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null || true)" ]
}

# What kernels are compiled for: the GPUs of this machine or, without one, the oldest that the project supports.
escalera_cuda_architecture() {
  local capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | sort -u | tr -d '. ' | head -n 1 || true)
  echo "${capability:-80}-real"
}

# Compile jobs: one per core, but no more than memory allows (a unit full of Eigen takes up to 1.5 GB).
escalera_jobs() {
  local cores memory_kb by_memory
  cores=$(nproc)
  memory_kb=$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo)
  by_memory=$((${memory_kb:-4000000} / 1500000))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  case ${1:-} in
    "" | --docs) escalera_setup "$@" ;;
    *)
      echo "usage: scripts/setup.sh [--docs]" >&2
      exit 2
      ;;
  esac
fi

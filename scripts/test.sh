#!/usr/bin/env bash
# Sets up, builds and tests: all that a contributor or continuous integration has to call. The last lines are ctest's.
#
#   scripts/test.sh                  what every change must pass; under 25 minutes on 2 cores from a clean clone: the CPU, and
#                                    where the CUDA toolkit is installed also the CUDA backend, compiled and simulated
#   scripts/test.sh --full           the full parity matrices too, and the tests once more under the sanitizers
#   scripts/test.sh --preset NAME    one preset alone: cpu, cuda, simulated; debug (the CPU under AddressSanitizer and UBSan),
#                                    simulated-address, simulated-thread
#   scripts/test.sh -R NAME          only tests whose name matches; any option of ctest may follow --
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

full=no
preset=
ctest_options=()
while [ $# -gt 0 ]; do
  case $1 in
    --full) full=yes; shift ;;
    --preset)
      [ $# -ge 2 ] || { echo "test.sh: --preset wants a name after it, such as cpu or simulated" >&2; exit 2; }
      preset=$2; shift 2 ;;
    -R)
      [ $# -ge 2 ] || { echo "test.sh: -R wants a regular expression after it" >&2; exit 2; }
      ctest_options+=(-R "$2"); shift 2 ;;
    --) shift; ctest_options+=("$@"); break ;;
    -h|--help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "test.sh: unknown option $1 (scripts/test.sh --help)" >&2; exit 2 ;;
  esac
done
case $preset in
  "" | cpu | debug | cuda | simulated | simulated-address | simulated-thread) ;;
  *) echo "test.sh: there is no preset $preset (cpu, cuda, simulated, debug, simulated-address, simulated-thread)" >&2; exit 2 ;;
esac

source scripts/setup.sh
escalera_setup
scripts/make_corpus.sh

# CUDA presets test only what needs a device: the rest is the same code as in the preset cpu. Without a GPU the preset cuda makes
# the library and the programs that measure it: that the kernels compile, and that the library opens. What the kernels compute is
# tested simulated.
build() { # preset
  local options=() target=()
  case $1 in
    cuda | simulated*)
      options=(-DESCALERA_CUDA_TESTS_ONLY=ON)
      target=(--target cuda_checks) ;;
  esac
  if [ "$1" = cuda ]; then
    options+=(-DCMAKE_CUDA_ARCHITECTURES="$(escalera_cuda_architecture)")
    if escalera_has_gpu; then options+=(-DESCALERA_CUDA_LIBRARY_ONLY=OFF); else options+=(-DESCALERA_CUDA_LIBRARY_ONLY=ON); fi
  fi
  cmake --preset "$1" "${options[@]}"
  cmake --build --preset "$1" -j "$(escalera_jobs)" "${target[@]}"
}

# One run of ctest over the build folders of several presets, so that there is one count at the end.
run_tests() { # presets
  local name
  mkdir -p build/tests
  for name in "$@"; do
    echo "subdirs(\"$PWD/build/$name\")"
  done > build/tests/CTestTestfile.cmake
  local filter=()
  [ "$full" = yes ] || filter=(-LE '^full$')
  ctest --test-dir build/tests --output-on-failure --no-tests=error -j "$(nproc)" "${filter[@]}" "${ctest_options[@]}"
}

presets=("$preset")
if [ -z "$preset" ]; then
  presets=(cpu)
  if escalera_has_nvcc; then presets+=(cuda); else echo "test.sh: no nvcc here: the CUDA backend is not compiled for GPUs"; fi
  if escalera_has_cuda_headers; then
    presets+=(simulated)
  else
    echo "test.sh: no CUDA toolkit here: the tests of the CUDA backend are left out, simulated ones too (they need its headers)"
  fi
  if [ "$full" = yes ]; then
    presets+=(debug)
    if escalera_has_cuda_headers; then presets+=(simulated-address simulated-thread); fi
  fi
fi
for name in "${presets[@]}"; do build "$name"; done
run_tests "${presets[@]}"

#!/usr/bin/env bash
# Sets up, builds and tests: all that a contributor or continuous integration has to call. The last lines are ctest's.
#
#   scripts/test.sh                  what every change must pass; under 15 minutes on 2 cores from a clean clone
#   scripts/test.sh --full           the full parity matrices too, and the tests once more under the sanitizers
#   scripts/test.sh --preset debug   the same tests in another preset (debug: AddressSanitizer and UBSan)
#   scripts/test.sh -R NAME          only tests whose name matches; any option of ctest may follow --
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

full=no
preset=cpu
ctest_options=()
while [ $# -gt 0 ]; do
  case $1 in
    --full) full=yes; shift ;;
    --preset)
      [ $# -ge 2 ] || { echo "test.sh: --preset wants cpu or debug after it" >&2; exit 2; }
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
  cpu | debug) ;;
  *) echo "test.sh: there is no preset $preset (cpu or debug)" >&2; exit 2 ;;
esac

source scripts/setup.sh
escalera_setup
scripts/make_corpus.sh

# label: "quick" leaves the tests out that are labelled full
run() { # preset, label
  local filter=()
  [ "$2" = full ] || filter=(-LE '^full$')
  cmake --preset "$1"
  cmake --build --preset "$1" -j "$(escalera_jobs)"
  ctest --test-dir "build/$1" --output-on-failure --no-tests=error -j "$(nproc)" "${filter[@]}" "${ctest_options[@]}"
}

if [ "$full" = yes ]; then
  if [ "$preset" != debug ]; then
    run debug quick
  fi
  run "$preset" full
else
  run "$preset" quick
fi

#!/usr/bin/env bash
# Formats the C++ sources in place with clang-format; --check only says which files differ, and fails if any does.
# Releases of clang-format differ in small things; the one of Debian 12 (14) is what the sources follow.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in
  "") options=(-i) ;;
  --check) options=(--dry-run --Werror) ;;
  *) echo "usage: scripts/format.sh [--check]" >&2; exit 2 ;;
esac
command -v clang-format > /dev/null || { echo "format: clang-format was not found (package clang-format)" >&2; exit 1; }
git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' | xargs -0 -r clang-format "${options[@]}"

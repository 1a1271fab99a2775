#!/usr/bin/env bash
# Writes data/kjv.txt, the text that the chapters train on: the King James Bible (public domain, about 4 MB) out of Debian's
# bible-kjv package. The form is chosen for a model that sees bytes: a heading for each chapter, an empty line, then one verse
# per line after its number, with nothing that repeats without meaning (line breaks at 79 columns, indentation).
#
#   Genesis 1
#
#   1 In the beginning God created the heaven and the earth.
#   2 And the earth was without form, and void; and darkness was upon the face of the deep. ...
#
# The same package gives the same bytes. Nothing is done if the file is there: remove it to make it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
corpus=data/kjv.txt

describe() {
  echo "corpus: $corpus $1: $(stat -c %s "$corpus") bytes, sha256 $(sha256sum "$corpus" | cut -d ' ' -f 1)"
}

if [ $# -gt 0 ]; then
  echo "usage: scripts/make_corpus.sh (writes $corpus)" >&2
  exit 2
fi
if [ -s "$corpus" ]; then
  describe "is already there"
  exit 0
fi
if ! command -v bible > /dev/null; then
  echo "corpus: the program bible was not found; scripts/setup.sh installs it on Debian and Ubuntu (package bible-kjv)" >&2
  exit 1
fi

mkdir -p data
# Written beside its place and renamed when complete: an interrupted run leaves no half of a corpus to train on.
temporary=$(mktemp data/.kjv.XXXXXX)
trap 'rm -f "$temporary"' EXIT

# -l with a wide column keeps each verse on one line; -p keeps bible from using a data file in the current folder.
LC_ALL=C bible -p /usr/lib -l 100000 'Ge1:1-Rev22:21' < /dev/null |
  LC_ALL=C sed -e 's/^ *//' -e 's/ *$//' -e '1{/^$/d}' > "$temporary"

# 31102 verses in 1189 chapters: an empty or cut result is found here and not as a strange loss curve.
chapters=$(LC_ALL=C grep -cE '^([1-3] )?[A-Z][A-Za-z ]* [0-9]+$' "$temporary" || true)
lines=$(LC_ALL=C grep -cvE '^$' "$temporary" || true)
if [ "$chapters" != 1189 ] || [ "$((lines - chapters))" != 31102 ]; then
  echo "corpus: expected 1189 chapters and 31102 verses but got $chapters and $((lines - chapters)); nothing is written" >&2
  exit 1
fi
chmod 644 "$temporary"
mv "$temporary" "$corpus"
trap - EXIT
describe "is written"

#!/usr/bin/env bash
# The paper's ablations and its Table 1 on Multi30k German -> English, three seeds each.
#
#   experiments/paper/multi30k-ablations/run.sh DATA WORK RESULTS
#
# DATA holds train.{de,en}.xz, val.{de,en} and test_2016_flickr.{de,en}. RUNS may name another list of
# runs; for the other variables see ../queue.sh.
set -euo pipefail
data=$1 work=$2 results=$3
here=$(cd "$(dirname "$0")" && pwd)
test=$data/test_2016_flickr
if [ ! -e "$work/corpus" ]; then
  mkdir -p "$work"
  ${WAITINFO:-waitinfo} prepare --source "$data/train.de.xz" --target "$data/train.en.xz" \
    --dev-source "$data/val.de" --dev-target "$data/val.en" \
    --exclude-source "$test.de" --exclude-target "$test.en" --vocab bpe:8000 --out "$work/corpus"
fi
export CORPUS=$work/corpus RECIPE=${RECIPE:-$here/../../../recipes/multi30k.toml}
export SOURCE=$test.de REFERENCE=$test.en ALLOW_DIALS=${ALLOW_DIALS-1,3}
"$here/../queue.sh" "${RUNS:-$here/runs.txt}" "$work" "$results"
python3 "$here/../collect.py" "$results" "$results"

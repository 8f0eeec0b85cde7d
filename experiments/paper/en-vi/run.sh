#!/usr/bin/env bash
# Every system on English -> Vietnamese: text, corpus, training, scores. Each stage is done once.
#
#   experiments/paper/en-vi/run.sh DATA WORK RESULTS
#
# DATA holds train.{en,vi}.xz, tst2012.{en,vi} (development) and tst2013.{en,vi} (test). RUNS may
# name another list of runs; for the other variables see ../queue.sh.
set -euo pipefail
data=$1 work=$2 results=$3
here=$(cd "$(dirname "$0")" && pwd)
text=$work/text
if [ ! -e "$work/corpus" ]; then
  mkdir -p "$text"
  for set in tst2012 tst2013; do
    python3 "$here/tokenise.py" "$data/$set.en" "$data/$set.vi" "$text/$set.en" "$text/$set.vi"
  done
  python3 "$here/tokenise.py" "$data/train.en.xz" "$data/train.vi.xz" "$text/train.en" \
    "$text/train.vi" --without "$data"/tst201[23].{en,vi}
  ${WAITINFO:-waitinfo} prepare --source "$text/train.en" --target "$text/train.vi" \
    --dev-source "$text/tst2012.en" --dev-target "$text/tst2012.vi" \
    --exclude-source "$text/tst2013.en" --exclude-target "$text/tst2013.vi" \
    --vocab words:5 --out "$work/corpus"
fi
export CORPUS=$work/corpus RECIPE=${RECIPE:-$here/../../../recipes/en-vi.toml}
export SOURCE=$text/tst2013.en REFERENCE=$text/tst2013.vi
"$here/../queue.sh" "${RUNS:-$here/runs.txt}" "$work" "$results"
python3 "$here/../collect.py" "$results" "$results"

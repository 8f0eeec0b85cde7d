#!/usr/bin/env bash
# Trains and scores systems on German -> English: Europarl, Tatoeba and the newstests of 2008-2012.
#
#   results/de-en/run.sh DATA WORK RESULTS [DEVICE] [SEED]
#
# DATA holds europarl.train, tatoeba.train and newstest2008-2012 as .{de,en}.xz, and the dev and
# test sets newstest2013, newstest2015, europarl.dev, europarl.test and europarl.test-german (made of
# the last by german.py) as plain .de and .en.
# RESULTS/RUN gets a run's logs and, for every set, one JSON a point. A run is scored while the next
# one trains; the number of updates is fixed, so that this makes it slower but not worse. RUNS may be
# overridden: lines of "run corpus recipe system settings". The corpus is "corpus", or "corpus-spoken",
# which has Tatoeba and the newstests three times and text without capitals and punctuation besides
# (spoken.py).
set -euo pipefail
data=$1 work=$2 results=$3 device=${4:-cuda} seed=${5:-1}
here=$(cd "$(dirname "$0")/../.." && pwd)
WAITINFO=${WAITINFO:-waitinfo} VOCAB=${VOCAB:-bpe:12000}
mkdir -p "$work" "$results"

prepare() {  # corpus files-without-endings … -- options
  local out=$work/$1 sources=() targets=(); shift
  while [ "$1" != -- ]; do sources+=("$1.de.xz") targets+=("$1.en.xz"); shift; done; shift
  $WAITINFO prepare --source "${sources[@]}" --target "${targets[@]}" \
    --dev-source "$data/newstest2013.de" "$data/europarl.dev.de" \
    --dev-target "$data/newstest2013.en" "$data/europarl.dev.en" \
    --exclude-source "$data/newstest2015.de" "$data/europarl.test.de" \
    --exclude-target "$data/newstest2015.en" "$data/europarl.test.en" "$@" --out "$out"
}

prepare_spoken() {
  local news=$data/newstest2008-2012 everyday=$data/tatoeba.train name
  for name in europarl tatoeba; do
    python3 "$here/results/de-en/spoken.py" "$data/$name.train.de.xz" "$data/$name.train.en.xz" \
      "$work/$name.spoken"
  done
  prepare corpus-spoken "$data/europarl.train" "$everyday" "$everyday" "$everyday" "$news" "$news" \
    "$news" "$work/europarl.spoken" "$work/tatoeba.spoken" -- \
    --keep-duplicates --vocab-from "$work/corpus"
}

[ -e "$work/corpus" ] || prepare corpus "$data/europarl.train" "$data/tatoeba.train" \
  "$data/newstest2008-2012" -- --vocab "$VOCAB"

score() {  # run system set
  local run=$1 system=$2 set=$3 out=$results/$1/$3
  local all=${DIALS:-1,2,3,4,5,6,7,8,9,10,11,12,13,14,15} few=${FEW_DIALS:-1,3,5,7,9}
  [ "$system" = multipath ] && all=${DIALS:-1,2,3,4,5,6,7,8,9,10,11,12,13}
  mkdir -p "$out"
  evaluate() {
    $WAITINFO evaluate --model "$work/$run-$seed" --source "$data/$set.de" \
      --reference "$data/$set.en" --out "$out" --device "$device" --no-save-text "$@" \
      >>"$out/evaluate.log" 2>&1
  }
  case "$system $set" in
    "full europarl.test"* | "full newstest2015")
      evaluate --name "$run"; evaluate --name "$run-beam5" --beam 5 ;;
    "full "*) evaluate --name "$run" ;;
    *" europarl.test"* | *" newstest2015")
      evaluate --name "$run" --k "$all"
      evaluate --name "$run-allow" --ending allow --k "$few" ;;
    *) evaluate --name "$run" --k "$few" ;;  # the dev sets
  esac
  echo "scored: $run $set"
}

default_runs="wait-info corpus de-en wait-info system.whole_source_updates=1000 training.validate_k=3
wait-info-small corpus de-en-small wait-info system.whole_source_updates=1000 training.validate_k=3
multipath corpus de-en multipath
full corpus de-en full"
while read -r run corpus recipe system settings; do
  [ -e "$work/$corpus" ] || prepare_spoken
  out=$results/$run model=$work/$run-$seed
  mkdir -p "$out"
  if [ ! -e "$model/last/config.json" ]; then
    if [ -e "$model/run.json" ]; then
      $WAITINFO train --out "$model" --resume >>"$out/train.log" 2>&1 </dev/null
    else
      # shellcheck disable=SC2086
      $WAITINFO train --config "$here/recipes/$recipe.toml" --system "$system" \
        --data "$work/$corpus" --out "$model" \
        --set training.device="$device" training.seed="$seed" $settings \
        >"$out/train.log" 2>&1 </dev/null
    fi
  fi
  cp "$model/metrics.jsonl" "$model/run.json" "$out/"
  echo "trained: $run"
  for set in ${SETS:-newstest2015 europarl.test-german europarl.test europarl.dev newstest2013}; do
    score "$run" "$system" "$set" </dev/null &
  done
done <<<"${RUNS:-$default_runs}"
wait

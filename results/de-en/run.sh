#!/usr/bin/env bash
# Trains and scores systems on German -> English: Europarl, Tatoeba and the newstests of 2008-2012.
#
#   results/de-en/run.sh DATA WORK RESULTS MINUTES [DEVICE] [SEED]
#
# DATA holds *.train.{de,en}.xz (any number of parts), newstest2008-2012.{de,en}.xz and the dev and
# test sets newstest2013, newstest2015, europarl.dev and europarl.test as plain .de and .en. Each run
# trains for MINUTES. RESULTS/RUN gets its logs and, for every set, one JSON a point. RUNS may be
# overridden: lines of "run system minutes settings".
set -euo pipefail
data=$1 work=$2 results=$3 minutes=$4 device=${5:-cuda} seed=${6:-1}
here=$(cd "$(dirname "$0")/../.." && pwd)
WAITINFO=${WAITINFO:-waitinfo} RECIPE=${RECIPE:-$here/recipes/de-en.toml} VOCAB=${VOCAB:-bpe:16000}
mkdir -p "$work" "$results"

if [ ! -e "$work/corpus" ]; then
  $WAITINFO prepare --source "$data"/*.train*.de.xz "$data"/newstest2008-2012.de.xz \
    --target "$data"/*.train*.en.xz "$data"/newstest2008-2012.en.xz \
    --dev-source "$data/newstest2013.de" "$data/europarl.dev.de" \
    --dev-target "$data/newstest2013.en" "$data/europarl.dev.en" \
    --exclude-source "$data/newstest2015.de" "$data/europarl.test.de" \
    --exclude-target "$data/newstest2015.en" "$data/europarl.test.en" \
    --vocab "$VOCAB" --out "$work/corpus"
fi

score() {  # run system set dials
  local run=$1 system=$2 set=$3 dials=$4 out=$results/$1/$3
  mkdir -p "$out"
  local common=(--model "$work/$run-$seed" --source "$data/$set.de" --reference "$data/$set.en"
                --out "$out" --device "$device" --no-save-text)
  if [ "$system" = full ]; then
    $WAITINFO evaluate "${common[@]}" --name "$run" >>"$out/evaluate.log" 2>&1
    $WAITINFO evaluate "${common[@]}" --name "$run-beam5" --beam 5 >>"$out/evaluate.log" 2>&1
  else
    $WAITINFO evaluate "${common[@]}" --name "$run" --k "$dials" >>"$out/evaluate.log" 2>&1
    $WAITINFO evaluate "${common[@]}" --name "$run-allow" --ending allow --k "$dials" \
      >>"$out/evaluate.log" 2>&1
  fi
}

default_runs="wait-info wait-info $minutes system.whole_source_updates=1000
multipath multipath $minutes
full full $minutes"
while read -r run system time settings; do
  out=$results/$run model=$work/$run-$seed
  mkdir -p "$out"
  if [ ! -e "$model/last/config.json" ]; then
    resume=(); [ -e "$model/run.json" ] && resume=(--resume)
    # shellcheck disable=SC2086
    $WAITINFO train --config "$RECIPE" --system "$system" --data "$work/corpus" --out "$model" \
      --max-minutes "$time" "${resume[@]}" \
      --set training.device="$device" training.seed="$seed" $settings 2>&1 | tee -a "$out/train.log"
    cp "$model/metrics.jsonl" "$model/run.json" "$out/"
  fi
  dials=${DIALS:-1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}
  [ "$system" = multipath ] && dials=${DIALS:-1,2,3,4,5,6,7,8,9,10,11,12,13}
  for set in ${SETS:-newstest2013 europarl.dev newstest2015 europarl.test}; do
    score "$run" "$system" "$set" "$dials"
  done
done <<<"${RUNS:-$default_runs}"

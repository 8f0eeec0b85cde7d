#!/usr/bin/env bash
# Trains and scores every system on Multi30k German -> English.
#
#   results/multi30k/run.sh DATA WORK RESULTS [DEVICE] [JOBS] [SEED]
#
# DATA holds train.{de,en}.xz, val.{de,en} and test_2016_flickr.{de,en}. RESULTS gets one JSON a
# point and each run's log. RECIPE and RUNS (a list of "name system settings") may be overridden.
set -euo pipefail
data=$1 work=$2 results=$3 device=${4:-cuda} jobs=${5:-4} seed=${6:-1}
here=$(cd "$(dirname "$0")/../.." && pwd)
export WAITINFO=${WAITINFO:-waitinfo} RECIPE=${RECIPE:-$here/recipes/multi30k.toml}
export data work results device seed
mkdir -p "$work" "$results"

if [ ! -e "$work/corpus" ]; then
  $WAITINFO prepare --source "$data/train.de.xz" --target "$data/train.en.xz" \
    --dev-source "$data/val.de" --dev-target "$data/val.en" \
    --exclude-source "$data/test_2016_flickr.de" --exclude-target "$data/test_2016_flickr.en" \
    --vocab bpe:8000 --out "$work/corpus"
fi

run_one() {
  local name=$1 system=$2; shift 2
  local run=$work/$name-$seed out=$results/seed-$seed
  mkdir -p "$out"
  $WAITINFO train --config "$RECIPE" --system "$system" --data "$work/corpus" --out "$run" \
    --set training.device="$device" training.seed="$seed" "$@" >"$out/$name.log" 2>&1
  cp "$run/metrics.jsonl" "$out/$name.metrics.jsonl"
  score() {
    $WAITINFO evaluate --model "$run" --source "$data/test_2016_flickr.de" \
      --reference "$data/test_2016_flickr.en" --out "$out" --device "$device" --no-save-text "$@" \
      >>"$out/$name.log" 2>&1
  }
  case $system in
    full) score --name "$name"; score --name "$name-beam5" --beam 5 ;;
    wait-k) score --name "$name"; score --name "$name-allow" --ending allow ;;
    *) score --name "$name" --k "$DIALS"; score --name "$name-allow" --ending allow --k "$DIALS" ;;
  esac
  echo "done: $name seed $seed"
}
export -f run_one
export DIALS=${DIALS:-1,2,3,4,5,6,7,8,9,11}

default_runs='full full
wait-info wait-info system.whole_source_updates=1000
multipath multipath
wait-k1 wait-k system.k=1
wait-k3 wait-k system.k=3
wait-k5 wait-k system.k=5
wait-k7 wait-k system.k=7
wait-k9 wait-k system.k=9'
printf '%s\n' "${RUNS:-$default_runs}" | xargs -P "$jobs" -I{} bash -c 'run_one {}'

#!/usr/bin/env bash
# Trains and scores every system on Multi30k German -> English.
#
#   results/multi30k/run.sh DATA WORK RESULTS [DEVICE] [JOBS] [SEED]
#
# DATA holds train.{de,en}.xz, val.{de,en} and test_2016_flickr.{de,en}. RESULTS/seed-SEED/RUN gets
# one JSON a point and the run's log. RECIPE may be overridden, and RUNS: lines of
# "run curve system settings", where the points of all runs of one curve belong together.
set -euo pipefail
data=$1 work=$2 results=$3 device=${4:-cuda} jobs=${5:-4} seed=${6:-1}
here=$(cd "$(dirname "$0")/../.." && pwd)
export WAITINFO=${WAITINFO:-waitinfo} RECIPE=${RECIPE:-$here/recipes/multi30k.toml}
export DIALS=${DIALS:-1,2,3,4,5,6,7,8,9,11} THRESHOLDS=${THRESHOLDS:-0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9}
export data work results device seed
mkdir -p "$work" "$results"

if [ ! -e "$work/corpus" ]; then
  $WAITINFO prepare --source "$data/train.de.xz" --target "$data/train.en.xz" \
    --dev-source "$data/val.de" --dev-target "$data/val.en" \
    --exclude-source "$data/test_2016_flickr.de" --exclude-target "$data/test_2016_flickr.en" \
    --vocab bpe:8000 --out "$work/corpus"
fi

run_one() {
  local run=$1 curve=$2 system=$3; shift 3
  local model=$work/$run-$seed out=$results/seed-$seed/$run
  mkdir -p "$out"
  if [ -e "$model/run.json" ]; then  # interrupted before: go on
    $WAITINFO train --out "$model" --resume >>"$out/train.log" 2>&1
  else
    $WAITINFO train --config "$RECIPE" --system "$system" --data "$work/corpus" --out "$model" \
      --set training.device="$device" training.seed="$seed" "$@" >"$out/train.log" 2>&1
  fi
  cp "$model/metrics.jsonl" "$out/metrics.jsonl"
  score() {
    $WAITINFO evaluate --model "$model" --source "$data/test_2016_flickr.de" \
      --reference "$data/test_2016_flickr.en" --out "$out" --device "$device" --no-save-text "$@" \
      >>"$out/evaluate.log" 2>&1
  }
  case $system in
    full) score --name "$curve"; score --name "$curve-beam5" --beam 5 ;;
    mma|gma|gsimt|wait-k)  # one model a point: at the dial it was trained for
      score --name "$curve" --label "${run##*-}"; score --name "$curve-allow" --ending allow ;;
    *) score --name "$curve" --k "$DIALS"; score --name "$curve-allow" --ending allow --k "$DIALS" ;;
  esac
  if [ "$curve" = multipath ]; then  # the same model, decoded adaptively
    score --name adaptive-wait-k --system adaptive-wait-k --k "$THRESHOLDS"
    score --name adaptive-wait-k-allow --system adaptive-wait-k --k "$THRESHOLDS" --ending allow
  fi
  echo "done: $run seed $seed"
}
export -f run_one

default_runs='gsimt-2 gsimt gsimt system.zeta=2 system.whole_source_updates=3000 system.positions_at_once=1000000
gsimt-4 gsimt gsimt system.zeta=4 system.whole_source_updates=3000 system.positions_at_once=1000000
gsimt-6 gsimt gsimt system.zeta=6 system.whole_source_updates=3000 system.positions_at_once=1000000
mma-0.4 mma mma system.latency_weight=0.4
mma-0.2 mma mma system.latency_weight=0.2
mma-0.1 mma mma system.latency_weight=0.1
mma-0.04 mma mma system.latency_weight=0.04
moe-wait-k moe-wait-k moe-wait-k system.equal_updates=2000
gma-0.5 gma gma system.delta=0.5
gma-1 gma gma system.delta=1
gma-2 gma gma system.delta=2
gma-3 gma gma system.delta=3
wait-info wait-info wait-info system.whole_source_updates=1000 training.validate_k=3
multipath multipath multipath
full full full
wait-k-1 wait-k wait-k system.k=1
wait-k-3 wait-k wait-k system.k=3
wait-k-5 wait-k wait-k system.k=5
wait-k-7 wait-k wait-k system.k=7
wait-k-9 wait-k wait-k system.k=9'
printf '%s\n' "${RUNS:-$default_runs}" | xargs -P "$jobs" -I{} bash -c 'run_one {}'

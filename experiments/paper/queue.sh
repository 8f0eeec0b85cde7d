#!/usr/bin/env bash
# Trains and scores a list of runs on one corpus, several at a time.
#
#   experiments/paper/queue.sh RUNS WORK RESULTS
#
# RUNS is a file with lines of "run seed curve system settings"; the points of all runs of one curve
# belong together. A model is trained in WORK/RUN-SEED. Its points and logs go to
# RESULTS/seed-SEED/RUN. A model is scored while the next ones train. Called again, the script goes
# on where it stopped.
#
# From the environment: CORPUS, RECIPE, SOURCE and REFERENCE (the test set); DEVICE (cuda), JOBS
# (models that train at a time), SCORERS (calls of evaluate at a time), DIALS and ALLOW_DIALS (dial
# values, with the guard and with --ending allow), THRESHOLDS (of adaptive wait-k), CATCH_UP (constants
# by which multipath and wait-info models are decoded as wait-k with catch-up too, 0 for none of it),
# WAITINFO (the command), TEXT (empty: keep the translations), KEEP (yes: keep the checkpoints of a
# finished model).
set -euo pipefail
runs=$1 work=$2 results=$3
: "${CORPUS:?}" "${RECIPE:?}" "${SOURCE:?}" "${REFERENCE:?}"
export CORPUS RECIPE SOURCE REFERENCE work results
export DEVICE=${DEVICE:-cuda} WAITINFO=${WAITINFO:-waitinfo} KEEP=${KEEP:-no}
export TEXT=${TEXT---no-save-text} CATCH_UP=${CATCH_UP:-}
export DIALS=${DIALS:-1,2,3,4,5,6,7,8,9,11} ALLOW_DIALS=${ALLOW_DIALS-1,3,5,7,9}
export THRESHOLDS=${THRESHOLDS:-0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9}
mkdir -p "$work" "$results"

train_one() { # run seed curve system settings …; prints what is to be scored
  local run=$1 seed=$2 curve=$3 system=$4; shift 4
  local model=$work/$run-$seed out=$results/seed-$seed/$run
  mkdir -p "$out"
  if [ ! -e "$model/last/config.json" ]; then
    if [ -e "$model/run.json" ]; then # interrupted before: go on
      $WAITINFO train --out "$model" --resume >>"$out/train.log" 2>&1
    else
      $WAITINFO train --config "$RECIPE" --system "$system" --data "$CORPUS" --out "$model" \
        --set training.device="$DEVICE" training.seed="$seed" "$@" >"$out/train.log" 2>&1
    fi || { echo "failed: training of $run, seed $seed ($out/train.log)" >&2; return 1; }
  fi
  cp "$model/metrics.jsonl" "$model/run.json" "$out/"
  [ "$KEEP" = yes ] || rm -rf "$model/checkpoints"
  echo "trained: $run seed $seed" >&2
  local task
  for task in guard allow beam adaptive catch-up; do echo "$run $seed $curve $system $task"; done
}

score_one() { # run seed curve system task
  local run=$1 seed=$2 curve=$3 system=$4 task=$5 c
  local out=$results/seed-$seed/$run
  evaluate() {
    $WAITINFO evaluate --model "$work/$run-$seed" --source "$SOURCE" --reference "$REFERENCE" \
      --out "$out" --device "$DEVICE" $TEXT "$@" >>"$out/evaluate-$task.log" 2>&1 ||
      { echo "failed: scoring of $run, seed $seed ($out/evaluate-$task.log)" >&2; return 1; }
  }
  case "$task $system" in
    "guard full") evaluate --name "$curve" ;;
    "beam full") evaluate --name "$curve-beam5" --beam 5 ;;
    *" full" | beam*) return ;;
    "guard mma" | "guard gma" | "guard gsimt" | "guard wait-k") # at the dial it was trained for
      evaluate --name "$curve" --label "${run##*-}" ;;
    "allow mma" | "allow gma" | "allow gsimt" | "allow wait-k")
      evaluate --name "$curve-allow" --ending allow ;;
    "adaptive multipath") # the same model, decoded adaptively
      evaluate --name "adaptive-${curve/multipath/wait-k}" --system adaptive-wait-k --k "$THRESHOLDS" ;;
    "catch-up multipath" | "catch-up wait-info") # the same weights, decoded as wait-k
      for c in $CATCH_UP; do
        evaluate --name "$curve-catch-up.$c" --system multipath --set catch_up="$c" --k "$DIALS" || return
      done ;;
    guard*) evaluate --name "$curve" --k "$DIALS" ;;
    allow*) [ -z "$ALLOW_DIALS" ] || evaluate --name "$curve-allow" --ending allow --k "$ALLOW_DIALS" ;;
    *) return ;;
  esac && echo "scored: $run seed $seed $task"
}
export -f train_one score_one

grep -v '^#' "$runs" | xargs -P "${JOBS:-4}" -I{} bash -c 'train_one {}' |
  xargs -P "${SCORERS:-3}" -I{} bash -c 'score_one {}'

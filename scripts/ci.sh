#!/usr/bin/env bash
# Stages of tests, one after the other; all of them run, whatever comes of those before. Ends with
# the minutes of each stage, the slowest tests, and a line "N passed, N failed, N skipped"; the exit
# code is 0 only where nothing failed. A stage that cannot run here says why and counts as skipped.
#
#   scripts/ci.sh [STAGE...]      (default: all that a push must pass, at most 40 minutes)
#
#     SHOAL_CI_MINUTES=N  leaves out stages that would not end in that time on a slow machine where
#                         nothing is compiled yet
#
#   quick     scripts/test.sh: release, unit and integration tests
#   lint      scripts/lint.sh: what must hold of the sources
#   links     every library links what it declares; benchmarks build
#   long      release, the tests with the label `long`
#   cuda      kernels and what runs them, on a fake GPU (needs the CUDA toolkit)
#   asan      AddressSanitizer and UndefinedBehaviorSanitizer: what reads files and messages, and
#             training in one process
#   fuzz      the fuzz targets, some seconds each
#   rdma      tests on soft-RoCE devices in a virtual machine (needs QEMU)
#   elastic   scripts/campaign.sh: 40 faults on real processes while jobs train (needs root)
#   operate   scripts/operate-test.sh --push: what of deploy/ and dashboards/ takes ten minutes
#             (needs PyPI and Debian's packages; some of it, root)
#
# Of a night (scripts/nightly.sh):
#
#   nightly   release, the tests with the label `nightly`
#   kernels   as `cuda`, and all else with CUDA: kernels compiled for GPUs, its long tests
#   asan-all  as `asan`, all unit and integration tests, kernels among them
#   tsan      scripts/tsan.sh: ThreadSanitizer
#   rdma-all  as `rdma`, the long ones too
#   single    every source compiled by itself: does it include what it uses?
#   peers     what other programs read of ours (needs PyPI)
#   elastic-all  as `elastic`, 500 faults
#   operate-all  as `operate`, all of scripts/operate-test.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/build.sh
# A sanitizer that finds something must fail the test, not print and go on.
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
# Memory that is refused is an error that programs tell, and tests ask for too much on purpose.
asan=detect_leaks=1:strict_string_checks=1:allocator_may_return_null=1
asan+=:suppressions=$PWD/scripts/asan.supp
export ASAN_OPTIONS=${ASAN_OPTIONS:-$asan}
export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$PWD/scripts/lsan.supp:print_suppressions=0}

# In this order, so that a slow machine leaves out what compiles most; minutes, where it is slow.
every_push=(quick lint long elastic operate rdma cuda links fuzz asan)
declare -A slow=([quick]=60 [lint]=10 [long]=20 [elastic]=12 [operate]=15 [rdma]=10 [cuda]=40
  [links]=40 [fuzz]=25 [asan]=50)

skip() {
  echo "SKIPPED: $*"
  exit 77
}

stage_quick() { scripts/test.sh; }

stage_lint() { scripts/lint.sh; }

# With the kernels, where their toolkit is, so that those libraries are checked too.
stage_links() {
  configure checks
  build checks link_checks benches
}

release_tests() {  # LABEL
  configure release
  build release
  run_tests release "$1" -L "^$1\$" -LE '^(rdma|gpu)$'
}
stage_long() { release_tests long; }
stage_nightly() { release_tests nightly; }

need_cuda_toolkit() {
  grep -q '^SHOAL_NVCC:.*=/' build/checks/CMakeCache.txt || skip "there is no CUDA toolkit"
}
stage_cuda() {
  configure checks
  need_cuda_toolkit
  build checks fake_tests
  run_tests checks cuda -L '^fake$' -LE '^(long|nightly)$'
}
stage_kernels() {
  configure checks
  need_cuda_toolkit
  build checks
  run_tests checks kernels -L '^fake$'
}

hostile='^(huggingface|data|tokenizer|job|model|server_checkpoint|server_service|client'
hostile+='|rpc|transport|tcp_transport|shm_transport|verbs_wire|verbs_fault|coordinator.*'
hostile+='|in_process_training|in_process_leaving)_test$'
stage_asan() {
  configure asan
  build_tests asan -R "$hostile"
  run_tests asan asan -R "$hostile"
}
stage_asan-all() {
  configure asan -DSHOAL_WITH_CUDA=ON
  build asan
  run_tests asan asan-all -L '^(unit|integration)$' -LE '^(long|nightly)$'
}

stage_tsan() { scripts/tsan.sh --output-junit "$results/tsan.xml"; }

stage_fuzz() {
  configure fuzz
  build fuzz fuzzers
  run_tests fuzz fuzz -L '^fuzz$'
}

rdma_tests() {  # NAME [--all]
  configure release
  build release
  mkdir -p "$results"
  SHOAL_RDMA_RESULTS=$results/$1.xml tests/rdma/run.sh "${@:2}"
}
stage_rdma() { rdma_tests rdma; }
stage_rdma-all() { rdma_tests rdma-all --all; }

stage_single() {
  configure single
  build single
}

stage_elastic() { scripts/campaign.sh --faults 40; }
stage_elastic-all() { scripts/campaign.sh --faults 500 --seed "$(date +%Y%m%d)"; }

stage_operate() { scripts/operate-test.sh --push; }
stage_operate-all() { scripts/operate-test.sh; }

stage_peers() {
  scripts/read-tensorboard.sh
  scripts/feed-trackers.sh
}

# A stage is a process of its own, which ends where a command of it fails.
if [ "${1:-}" = --stage ]; then
  "stage_$2"
  exit
fi

stages=("$@")
[ $# -gt 0 ] || stages=("${every_push[@]}")
for stage in "${stages[@]}"; do
  declare -F "stage_$stage" >/dev/null || {
    echo "unknown stage $stage" >&2
    sed -n '/^#   scripts/,/^$/s/^# \{0,1\}//p; /^#   [a-z-]* /s/^# \{0,1\}//p' "$0" >&2
    exit 2
  }
done

rm -rf "$results"
mkdir -p "$results"
begin=$SECONDS
if [[ " ${stages[*]} " =~ \ (lint|fuzz|rdma|rdma-all|elastic|elastic-all)\  ]]; then
  scripts/install-dependencies.sh --tests
fi
for stage in "${stages[@]}"; do
  printf '\n== %s\n' "$stage"
  start=$SECONDS
  status=0
  left=$(((${SHOAL_CI_MINUTES:-1000} * 60 - SECONDS + begin) / 60))
  if [ "$left" -ge "${slow[$stage]:-0}" ]; then
    "$0" --stage "$stage" || status=$?
  else
    echo "SKIPPED: $left minutes are left, and it may take ${slow[$stage]}"
    status=77
  fi
  printf '%s\t%s\t%s\n' "$stage" "$status" "$((SECONDS - start))" >>"$results/stages.tsv"
done
python3 scripts/test_report.py "$results" --seconds "$((SECONDS - begin))"

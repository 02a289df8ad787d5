#!/usr/bin/env bash
# All stages of scripts/ci.sh, those among them that take too long for every push: some hours on two
# cores. Arguments: stages to run instead.
set -euo pipefail
cd "$(dirname "$0")"
if [ $# -eq 0 ]; then
  set -- quick lint links long fuzz nightly kernels asan-all rdma-all single peers elastic-all \
    operate-all tsan
fi
exec ./ci.sh "$@"

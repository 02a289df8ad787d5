#!/usr/bin/env bash
# What must hold of the sources, without building them: in seconds, but for clang-tidy.
#
#   scripts/lint.sh [--base COMMIT] [--fix]
#
#     --base  what clang-tidy and the commit rule compare with
#             (default: where this branch left main of origin, or HEAD~1)
#     --fix   formats what clang-format would format
#
#   tidy          scripts/tidy.py and its test: width, length, folders, paths, includes, vocabulary
#   clang-format  every C++ file, by .clang-format
#   commits       subjects since the base: at most 72 characters, one change
#   clang-tidy    the lines that changed since the base (scripts/clang_tidy.py)
set -euo pipefail
cd "$(dirname "$0")/.."
base='' fix=''
while [ $# -gt 0 ]; do
  case $1 in
    --base) base=${2:?--base wants a commit}; shift ;;
    --fix) fix=yes ;;
    *) sed -n '/^#   scripts/,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
if [ -z "$base" ]; then
  base=$(git merge-base HEAD origin/main 2>/dev/null || true)
  if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then
    base=$(git rev-parse --verify --quiet HEAD~1 || git rev-parse HEAD)
  fi
fi

tidy() {
  python3 scripts/tidy_test.py --quiet && python3 scripts/tidy.py
}

clang_format() {
  local format
  format=$(command -v clang-format-14 || command -v clang-format) || {
    echo "there is no clang-format (scripts/install-dependencies.sh --tests installs it)" >&2
    return 77
  }
  local how=(--dry-run --Werror)
  [ -z "$fix" ] || how=(-i)
  # `ls`: git also lists what was deleted and is not yet committed.
  { git ls-files -coz --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh' | xargs -0 -r ls -d || true
  } 2>/dev/null | xargs -r -n 64 -P "$(nproc)" "$format" "${how[@]}" 2>&1 |
    sed -n 's/: error: .*/: is not formatted: scripts\/lint.sh --fix/p'
}

commits() {
  local subject bad=0
  while read -r subject; do
    if [ ${#subject} -gt 72 ] || [[ $subject == *';'* ]]; then
      echo "commit subject of ${#subject} characters: $subject"
      bad=1
    fi
  done < <(git log --no-merges --format=%s "$base..HEAD")
  [ "$bad" = 0 ] || echo "at most 72 characters, no semicolon: the rest goes into the body"
  return "$bad"
}

clang_tidy() {
  python3 scripts/clang_tidy_test.py --quiet && python3 scripts/clang_tidy.py --base "$base"
}

failed=()
skipped=()
run() {  # name command...
  local status=0 start=$SECONDS
  printf '\n== lint: %s\n' "$1"
  "${@:2}" || status=$?
  case $status in
    0) ;;
    77) skipped+=("$1") ;;
    *) failed+=("$1") ;;
  esac
  echo "$1: $((SECONDS - start)) s"
}
run tidy tidy
run clang-format clang_format
run commits commits
run clang-tidy clang_tidy

[ ${#skipped[@]} -eq 0 ] || printf '\nSKIPPED, with the reason above: %s\n' "${skipped[*]}"
if [ ${#failed[@]} -gt 0 ]; then
  printf '\nFAILED: %s\n' "${failed[*]}"
  exit 1
fi

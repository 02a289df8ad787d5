# What scripts/test.sh and scripts/ci.sh share; they source it in the checkout's root.
jobs=$(nproc)
results=$PWD/build/results

# configure PRESET [-D...]
configure() {
  mkdir -p build
  local log=build/configure-$1.log
  cmake --preset "$@" >"$log" 2>&1 || { cat "$log" >&2; return 1; }
}

# build PRESET [TARGET...]
build() {
  cmake --build --preset "$1" -j "$jobs" ${2:+--target "${@:2}"}
}

# test_names PRESET SELECTION...: those of the tests that ctest would run
test_names() {
  ctest --test-dir "build/$1" -N "${@:2}" | sed -n 's/^ *Test *#[0-9]*: //p'
}

# build_tests PRESET SELECTION...: their programs, which are called as they are
build_tests() {
  local names targets
  mapfile -t names < <(test_names "$@")
  if [ ${#names[@]} -eq 0 ]; then
    echo "no test with ${*:2}" >&2
    return 1
  fi
  targets=$(cmake --build --preset "$1" --target help)
  mapfile -t names < <(printf '%s\n' "${names[@]}" | grep -xFf <(cut -d: -f1 <<<"$targets"))
  build "$1" "${names[@]}"
}

# run_tests PRESET NAME SELECTION...: leaves what came of them in NAME.xml
run_tests() {
  mkdir -p "$results"
  ctest --test-dir "build/$1" --output-on-failure -j "$jobs" --output-junit "$results/$2.xml" \
    "${@:3}"
}

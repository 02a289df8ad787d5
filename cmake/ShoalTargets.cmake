# shoal_library, shoal_test, shoal_program, shoal_bench, shoal_fuzz: how every folder declares what
# it builds.
#
# Layers are enforced by link: with SHOAL_LINK_CHECKS, <name>_link_check links the whole archive of
# each library against just its declared dependencies with no undefined symbol allowed, so code that
# reaches into an undeclared layer does not build.

add_library(shoal_flags INTERFACE)
target_include_directories(shoal_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
# -pthread: what some libraries ask for, so that all sources see the same macros.
target_compile_options(shoal_flags INTERFACE
  -Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers -pthread)
# Messages name sources by their paths in the project, whatever the checkout lies in.
target_compile_options(shoal_flags INTERFACE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(shoal_flags INTERFACE -Wthread-safety)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # A portable baseline (AVX2); wider kernels are chosen at run time.
  target_compile_options(shoal_flags INTERFACE -march=x86-64-v3)
endif()
# Contraction would let the compiler fuse a*b+c differently in two places that must give the same
# bits.
target_compile_options(shoal_flags INTERFACE -ffp-contract=off)
if(SHOAL_SANITIZE)
  target_compile_options(shoal_flags INTERFACE
    -fsanitize=${SHOAL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(shoal_flags INTERFACE -fsanitize=${SHOAL_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # On instrumented code that inlines much (JSON) GCC's variable tracking takes many minutes and
    # gigabytes, and sanitizer reports need lines alone.
    target_compile_options(shoal_flags INTERFACE -fno-var-tracking)
    # Instrumented, what is not half initialised looks so to it: an optional that is moved, its own
    # headers' vectors.
    target_compile_options(shoal_flags INTERFACE -Wno-maybe-uninitialized)
    if(SHOAL_SANITIZE MATCHES "thread")
      # GCC's ThreadSanitizer does not model fences and says so at each. Ours order atomics, which
      # it sees, and words shared with other processes, which it cannot see at all.
      target_compile_options(shoal_flags INTERFACE -Wno-tsan)
    endif()
  endif()
endif()
if(SHOAL_FUZZ)
  target_compile_options(shoal_flags INTERFACE
    -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  target_link_options(shoal_flags INTERFACE -fsanitize=address,undefined)
endif()

# What stages of scripts/ci.sh build.
add_custom_target(fuzzers)
add_custom_target(link_checks)
add_custom_target(benches)
add_custom_target(fake_tests)

# shoal_library(NAME SOURCES ... DEPENDS ... [CHECKED_WITH ...])
# CHECKED_WITH: what the link check adds of that which the library leaves to programs to choose (a
# runtime or its fake).
function(shoal_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;CHECKED_WITH" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC shoal_flags ${ARG_DEPENDS})
  shoal_compile_together(${name} library)
  if(SHOAL_LINK_CHECKS)
    add_library(${name}_link_check MODULE ${PROJECT_SOURCE_DIR}/cmake/empty.cc)
    target_link_libraries(${name}_link_check PRIVATE
      -Wl,--whole-archive $<TARGET_FILE:${name}> -Wl,--no-whole-archive -Wl,--no-undefined
      ${ARG_DEPENDS} ${ARG_CHECKED_WITH} shoal_flags)
    add_dependencies(${name}_link_check ${name})
    add_dependencies(link_checks ${name}_link_check)
    set_target_properties(${name}_link_check PROPERTIES
      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/link_check)
  endif()
endfunction()

# shoal_program(NAME SOURCES ... DEPENDS ...): one of the programs, placed in <build>/bin. Libraries
# in ../lib come before the system's, those that libraries need themselves among them (so RPATH, not
# RUNPATH): what scripts/bundle.sh makes stands on that.
function(shoal_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE shoal_flags ${ARG_DEPENDS})
  shoal_compile_together(${name} "")
  target_link_options(${name} PRIVATE LINKER:--disable-new-dtags)
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin
    INSTALL_RPATH "$ORIGIN/../lib" BUILD_WITH_INSTALL_RPATH ON)
endfunction()

# shoal_test(NAME SOURCES ... DEPENDS ... [LABELS ...] [TIMEOUT seconds] [PROCESSORS n]): one
# GoogleTest program = one CTest test. Labels: `unit` (the default), `integration`, `rdma` or `gpu`;
# beside it `long` for what takes a minute or more, `nightly` for what takes several. What runs on
# a fake GPU has the label `fake` of itself.
function(shoal_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;PROCESSORS" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(SHOAL_FUZZ)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE shoal_flags ${ARG_DEPENDS} shoal_test_main)
  shoal_compile_together(${name} test)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(SHOAL_SANITIZE)  # several times slower
    math(EXPR ARG_TIMEOUT "4 * ${ARG_TIMEOUT}")
  endif()
  if(NOT ARG_PROCESSORS)
    set(ARG_PROCESSORS 1)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if("${ARG_DEPENDS}" MATCHES "_fake(;|$)|shoal_fake_")
    list(APPEND ARG_LABELS fake)
    if(NOT "${ARG_LABELS}" MATCHES "long|nightly")
      add_dependencies(fake_tests ${name})
    endif()
  endif()
  # A test that skips everything, and in which nothing fails, ends with these lines of GoogleTest's;
  # CTest then reports it as skipped, not passed.
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${ARG_TIMEOUT} PROCESSORS ${ARG_PROCESSORS} LABELS "${ARG_LABELS}"
    SKIP_REGULAR_EXPRESSION "\\[  PASSED  \\] 0 tests\\.\n(\\[  SKIPPED \\][^\n]*\n?)+$")
endfunction()

# shoal_test_again(NAME PROGRAM ENVIRONMENT): a test program once more, as a CTest test of its own,
# with that environment and otherwise the properties that the program has by now.
function(shoal_test_again name program environment)
  add_test(NAME ${name} COMMAND ${program})
  foreach(property TIMEOUT PROCESSORS LABELS SKIP_REGULAR_EXPRESSION)
    get_test_property(${program} ${property} value)
    set_tests_properties(${name} PROPERTIES ${property} "${value}")
  endforeach()
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${environment}")
endfunction()

# shoal_bench(NAME SOURCES ... DEPENDS ...): a Google Benchmark program, placed in <build>/bench.
function(shoal_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  if(NOT SHOAL_BENCH)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE shoal_flags ${ARG_DEPENDS} benchmark::benchmark)
  shoal_compile_together(${name} "")
  add_dependencies(benches ${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
endfunction()

# shoal_fuzz(NAME SOURCES ... DEPENDS ... [CORPUS folder]): a libFuzzer target; CTest runs it for a
# few seconds.
function(shoal_fuzz name)
  cmake_parse_arguments(ARG "" "CORPUS" "SOURCES;DEPENDS" ${ARGN})
  if(NOT SHOAL_FUZZ)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE shoal_flags ${ARG_DEPENDS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzzers ${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
  set(corpus ${PROJECT_BINARY_DIR}/fuzz/${name}-corpus)
  file(MAKE_DIRECTORY ${corpus})
  add_test(NAME ${name}
    COMMAND ${name} -max_total_time=10 -rss_limit_mb=2048 -timeout=5 ${corpus} ${ARG_CORPUS})
  set_tests_properties(${name} PROPERTIES TIMEOUT 60 LABELS fuzz)
endfunction()

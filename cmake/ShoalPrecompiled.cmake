# Headers that are parsed once, for all sources of a kind, and not by each of them. They are headers
# of the system alone: what the compiler makes of them is then the same in every checkout, and so is
# what a compiler cache keeps by it. Sources include what they use all the same; a build with
# SHOAL_PRECOMPILED=OFF and SHOAL_UNITY=OFF shows whether they do.
#
# shoal_compile_together(TARGET KIND): how a target's sources are compiled. KIND is `library` or
# `test`, whose headers it uses, or empty, for targets with few sources.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(shoal_precompiled_default ON)
else()
  # Clang takes no such header where any macro differs, so each target would need its own.
  set(shoal_precompiled_default OFF)
endif()
option(SHOAL_PRECOMPILED "Parse the headers of the system that most sources include once"
  ${shoal_precompiled_default})
option(SHOAL_UNITY "Compile a target's sources in batches; OFF compiles each by itself" ON)

if(SHOAL_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # To the compiler a source in a batch is a header, whose classes hold nothing of one file's own.
  target_compile_options(shoal_flags INTERFACE -Wno-subobject-linkage)
endif()

if(SHOAL_PRECOMPILED)
  set(headers
    <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstddef> <cstdint>
    <cstdlib> <cstring> <deque> <filesystem> <fstream> <functional> <limits> <map> <memory>
    <mutex> <numeric> <optional> <set> <span> <sstream> <string> <string_view> <thread> <tuple>
    <utility> <variant> <vector>
    <absl/base/thread_annotations.h> <absl/container/flat_hash_map.h> <absl/status/status.h>
    <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/synchronization/mutex.h>
    <absl/time/clock.h> <absl/time/time.h> <fmt/format.h>)
  # GCC forgets that a precompiled header is the system's, and warns where it guesses wrong of
  # strings that the library copies (GCC bug 105329).
  target_compile_options(shoal_flags INTERFACE -Wno-array-bounds)
  # What defines macros that these headers read: all libraries and tests link it.
  set(links shoal_flags absl::flat_hash_map absl::statusor absl::synchronization fmt::fmt
    spdlog::spdlog)

  add_library(shoal_library_headers OBJECT ${PROJECT_SOURCE_DIR}/cmake/empty.cc)
  target_link_libraries(shoal_library_headers PRIVATE ${links})
  target_precompile_headers(shoal_library_headers PRIVATE ${headers})

  add_library(shoal_test_headers OBJECT ${PROJECT_SOURCE_DIR}/cmake/empty.cc)
  target_link_libraries(shoal_test_headers PRIVATE ${links} GTest::gmock_main)
  target_precompile_headers(shoal_test_headers PRIVATE ${headers} <gmock/gmock.h> <gtest/gtest.h>)
  # As programs are compiled, which tests are.
  set_target_properties(shoal_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(shoal_test_headers PRIVATE -fPIE)
endif()

function(shoal_compile_together name kind)
  if(SHOAL_PRECOMPILED AND kind)
    target_precompile_headers(${name} REUSE_FROM shoal_${kind}_headers)
  endif()
  if(SHOAL_UNITY)
    # Batches of one size, of 12 at most.
    get_target_property(sources ${name} SOURCES)
    list(LENGTH sources count)
    math(EXPR batches "(${count} + 11) / 12")
    math(EXPR size "(${count} + ${batches} - 1) / ${batches}")
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size})
  endif()
endfunction()

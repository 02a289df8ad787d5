# Every outside library, all of them Debian packages (scripts/install-dependencies.sh lists them).
find_package(Threads REQUIRED)
find_package(absl REQUIRED CONFIG)
find_package(fmt REQUIRED CONFIG)
find_package(spdlog REQUIRED CONFIG)
find_package(nlohmann_json REQUIRED CONFIG)
find_package(yaml-cpp REQUIRED CONFIG)
find_package(CLI11 REQUIRED CONFIG)
find_package(Protobuf REQUIRED)
find_package(gRPC REQUIRED CONFIG)
find_package(prometheus-cpp REQUIRED CONFIG)
find_package(GTest REQUIRED CONFIG)
if(SHOAL_BENCH)
  find_package(benchmark REQUIRED CONFIG)
endif()

find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)

# oneDNN's own CMake package insists on OpenCL headers that the CPU build does not use, so it is
# found by hand.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(shoal_dnnl INTERFACE)
target_include_directories(shoal_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
target_link_libraries(shoal_dnnl INTERFACE ${DNNL_LIBRARY})

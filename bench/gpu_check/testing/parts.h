// Runs the GPU check's parts in tests: on the CPU, at small sizes.
#pragma once

#include <string>
#include <string_view>

#include "bench/gpu_check/base/part_report.h"
#include "bench/gpu_check/base/parts.h"

namespace shoal::bench {

// Makes one in the tests' temporary folder.
std::string NewFolder();
PartOptions OnTheCpu();
PartReport RunOne(std::string_view name, const PartOptions& options);

}  // namespace shoal::bench

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/job/job.h"

// A job file and, after a zero byte, the --set values. A job that parses must be written and read
// back unchanged, before and after resolving.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  std::vector<std::string> overrides;
  if (end != std::string_view::npos) {
    overrides.emplace_back(input.substr(end + 1));
  }
  auto job = shoal::plan::ParseJob(input.substr(0, end), "f", overrides);
  for (int i = 0; job.ok() && i < 2; ++i) {
    const auto reread = shoal::plan::ParseJob(shoal::plan::ToYaml(*job), "f");
    if (!reread.ok() || !(*reread == *job)) {
      std::abort();
    }
    shoal::plan::Resolve(*job, "/folder", {.cpu_has_bf16 = true, .gpus = 1});
  }
  return 0;
}

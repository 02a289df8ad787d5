// Any file is read or refused: packed or not, lines or a list.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "core/base/check.h"
#include "core/base/file.h"
#include "core/data/sample_reader.h"
#include "fmt/format.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shoal;
  const UniqueFd fd(memfd_create("data", MFD_CLOEXEC));
  SHOAL_CHECK(fd.valid());
  SHOAL_CHECK(write(fd.get(), data, size) == static_cast<ssize_t>(size));
  const auto reader = worker::SampleReader::Open(fmt::format("/proc/self/fd/{}", fd.get()));
  SHOAL_CHECK(reader.ok() || absl::IsDataLoss(reader.status()));
  int64_t samples = 0;
  // What is packed can hold a million times its bytes.
  for (bool more = reader.ok(); more && samples < 10'000; ++samples) {
    const auto sample = (*reader)->Next();
    more = sample.ok() && sample->has_value();
    SHOAL_CHECK(!more || !(*sample)->empty());
  }
  return 0;
}

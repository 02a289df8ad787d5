#include "core/transport/streaming_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/base/random.h"

namespace shoal::transport {
namespace {

TEST(StreamingCopyTest, CopiesWhatMemcpyCopiesAndNothingAround) {
  constexpr size_t kRoom = 100000;
  Random random(7);
  std::vector<std::byte> from(kRoom);
  for (std::byte& byte : from) {
    byte = static_cast<std::byte>(random.Next());
  }
  for (int i = 0; i < 400; ++i) {
    const size_t size = i < 200 ? random.Below(300) : random.Below(kRoom - 200);
    const size_t source = random.Below(200);
    const size_t destination = random.Below(200);
    std::vector<std::byte> expected(kRoom, std::byte{0x5a});
    std::vector<std::byte> copied = expected;
    std::memcpy(expected.data() + destination, from.data() + source, size);
    StreamingCopy(copied.data() + destination, from.data() + source, size);
    ASSERT_EQ(copied, expected) << size << " bytes from " << source << " to " << destination;
  }
  EXPECT_GT(StreamingCopyBytes(), 0u);
}

}  // namespace
}  // namespace shoal::transport

// Linked into every test program with the label "rdma": without a device that the verbs transport
// can use, all of its tests are skipped, with the transport's own reason. Where a device is known
// to be there (SHOAL_REQUIRE_RDMA, which run.sh sets in the virtual machine) they fail instead, so
// that a transport that never finds one is not taken for a machine without.
#include <cstdlib>

#include "core/base/status.h"
#include "core/transport/registry/registry.h"
#include "gtest/gtest.h"

namespace shoal::transport {
namespace {

class NeedDevice : public ::testing::Environment {
 public:
  void SetUp() override {
    const auto transport = CreateTransport("verbs");
    if (transport.ok()) {
      return;
    }
    if (std::getenv("SHOAL_REQUIRE_RDMA") != nullptr) {
      FAIL() << "there should be an RDMA device here: " << Describe(transport.status());
    }
    // GoogleTest counts what is skipped here as passed; CTest knows it by this line.
    GTEST_SKIP() << "no RDMA device: " << Message(transport.status());
  }
};

const auto* const kNeedDevice = ::testing::AddGlobalTestEnvironment(new NeedDevice);

}  // namespace
}  // namespace shoal::transport

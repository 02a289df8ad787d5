#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/collectives/nccl/nccl_api.h"

namespace shoal::worker {
namespace {

TEST(NcclLibrary, IsWholeOrSaysWhatToDo) {
  const absl::StatusOr<Nccl> nccl = LoadNccl();
  if (!nccl.ok()) {
    EXPECT_EQ(nccl.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(Message(nccl.status())), ::testing::HasSubstr("SHOAL_CUDA_LIBRARIES"));
    return;
  }
  int version = 0;
  ASSERT_EQ(nccl->get_version(&version), ncclSuccess);
  EXPECT_GE(version, NCCL_VERSION(2, 14, 0));
  EXPECT_NE(nccl->get_error_string(ncclRemoteError), nullptr);
}

}  // namespace
}  // namespace shoal::worker

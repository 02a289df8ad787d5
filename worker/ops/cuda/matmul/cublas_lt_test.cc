#include "worker/ops/cuda/matmul/cublas_lt.h"

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker::cuda {
namespace {

TEST(LoadCublasLt, SaysWhereToPutWhatIsMissing) {
  const auto missing = LoadCublasLt({"libshoal-no-such.so.13"}, {});
  ASSERT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Message(missing.status())),
              testing::AllOf(testing::HasSubstr("libshoal-no-such.so.13"),
                             testing::HasSubstr("SHOAL_CUDA_LIBRARIES")));
}

TEST(LoadCublasLt, RefusesWhatIsSomethingElse) {
  const auto other = LoadCublasLt({"libm.so.6"}, {});
  ASSERT_EQ(other.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Message(other.status())), testing::HasSubstr("lacks functions"));
}

// The toolkit's own, where it has one; needs no GPU.
TEST(LoadCublasLt, FindsEveryFunctionInTheToolkitsLibrary) {
  const auto lt =
      LoadCublasLt({"libcublasLt.so.13", "libcublasLt.so.12"}, {SHOAL_TEST_CUDA_LIBRARY_FOLDER});
  if (!lt.ok()) {
    GTEST_SKIP() << lt.status();
  }
  EXPECT_GE(lt->version(), 120000u);
  EXPECT_STREQ(lt->status_name(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
}

}  // namespace
}  // namespace shoal::worker::cuda

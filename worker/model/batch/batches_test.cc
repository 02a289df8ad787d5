#include "worker/model/batch/batches.h"

#include <unistd.h>

#include <filesystem>
#include <vector>

#include "core/base/random.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BatchesTest : public ::testing::Test {
 protected:
  BatchesTest()
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("shoal-batches-{}-{}", getpid(), SecureToken())) {
    auto writer = formats::TokenFileWriter::Create(path_, 100, 7).value();
    EXPECT_TRUE(
        writer->Add(std::vector<int32_t>{1, 2, 3}, std::vector<int32_t>{-100, 3, -100}).ok());
    EXPECT_TRUE(writer->Add(std::vector<int32_t>{4, 5}, std::vector<int32_t>{5, -100}).ok());
    EXPECT_TRUE(writer->Finish().ok());
    file_ = formats::TokenFile::Open(path_).value();
  }
  ~BatchesTest() override { std::filesystem::remove(path_); }

  std::string path_;
  std::unique_ptr<formats::TokenFile> file_;
};

TEST_F(BatchesTest, PacksInThePlansOrder) {
  const auto batch = BuildBatch(*file_, {.samples = {1, 0}, .tokens = 5, .targets = 2}).value();
  EXPECT_THAT(batch.tokens, ElementsAre(4, 5, 1, 2, 3));
  EXPECT_THAT(batch.labels, ElementsAre(5, -100, -100, 3, -100));
  EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, 2, 5));
  EXPECT_TRUE(Validate(batch, 100).ok());
}

TEST_F(BatchesTest, NoticesAnotherFile) {
  const auto error = [&](const plan::Microbatch& microbatch) {
    return std::string(Message(BuildBatch(*file_, microbatch).status()));
  };
  EXPECT_THAT(error({.samples = {2}, .tokens = 1}), HasSubstr("asks for sample 2"));
  EXPECT_THAT(error({.samples = {-1}, .tokens = 1}), HasSubstr("asks for sample -1"));
  EXPECT_THAT(error({.samples = {0}, .tokens = 4, .targets = 1}),
              HasSubstr("planned with 4 tokens"));
  EXPECT_THAT(error({.samples = {0}, .tokens = 3, .targets = 2}), HasSubstr("2 targets"));
}

}  // namespace
}  // namespace shoal::worker

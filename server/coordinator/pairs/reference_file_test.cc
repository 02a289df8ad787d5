#include "server/coordinator/pairs/reference_file.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

TEST(ReferenceFile, IsReadAsItWasWritten) {
  const TemporaryFolder folder;
  const std::string path = folder / "reference.f64";
  EXPECT_TRUE(absl::IsNotFound(ReadReferences(path).status()));
  const std::vector<double> written = {-1.5, -2e9, std::numeric_limits<double>::quiet_NaN(), 0};
  ASSERT_OK(WriteReferences(path, written));
  const auto read = ReadReferences(path);
  ASSERT_OK(read.status());
  ASSERT_EQ(read->size(), 4u);
  EXPECT_EQ((*read)[0], -1.5);
  EXPECT_EQ((*read)[1], -2e9);
  EXPECT_TRUE(std::isnan((*read)[2]));
}

TEST(ReferenceFile, DamageIsSeen) {
  const TemporaryFolder folder;
  const std::string path = folder / "reference.f64";
  ASSERT_OK(WriteReferences(path, std::vector<double>(20, -3)));
  const std::string whole = ReadFile(path).value();
  for (size_t i = 0; i < whole.size(); i += 7) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    ASSERT_OK(WriteFileAtomically(path, changed));
    EXPECT_TRUE(absl::IsDataLoss(ReadReferences(path).status())) << "byte " << i;
    ASSERT_OK(WriteFileAtomically(path, whole.substr(0, i)));
    EXPECT_TRUE(absl::IsDataLoss(ReadReferences(path).status())) << i << " bytes";
  }
  ASSERT_OK(WriteFileAtomically(path, whole + "12345678"));
  EXPECT_TRUE(absl::IsDataLoss(ReadReferences(path).status()));
}

TEST(ReferencePath, FollowsWhatIsInTheFiles) {
  const TemporaryFolder folder;
  const auto make = [&](const std::string& name, const std::string& weights) {
    std::filesystem::create_directories(folder / name);
    EXPECT_TRUE(WriteFileAtomically(folder / name + "/model.safetensors", weights).ok());
    EXPECT_TRUE(WriteFileAtomically(folder / name + "/config.json", "{}").ok());
    EXPECT_TRUE(WriteFileAtomically(folder / name + "/README.md", name).ok());
  };
  const std::string weights(300'000, 'w');
  make("one", weights);
  make("same", weights);
  make("other", std::string(300'000, 'v'));
  ASSERT_OK(WriteFileAtomically(folder / "train.tokens", "train"));
  ASSERT_OK(WriteFileAtomically(folder / "validation.tokens", "validation"));
  const ReferenceSource one = {.token_file = folder / "train.tokens",
                               .validation_file = "",
                               .model = folder / "one",
                               .adapter = "",
                               .compute = "fp32",
                               .wire = "fp32"};
  const std::string path = ReferencePath(one).value();
  EXPECT_EQ(std::filesystem::path(path).parent_path(), folder.path());
  ReferenceSource other = one;
  other.model = folder / "same";
  EXPECT_EQ(ReferencePath(other).value(), path) << "wherever it lies";
  other.model = folder / "other";
  EXPECT_NE(ReferencePath(other).value(), path);
  other = one;
  other.adapter = folder / "other";
  EXPECT_NE(ReferencePath(other).value(), path);
  other = one;
  other.compute = "bf16";
  EXPECT_NE(ReferencePath(other).value(), path);
  other = one;
  other.wire = "bf16";
  EXPECT_NE(ReferencePath(other).value(), path);
  other = one;
  other.longest = 2048;
  EXPECT_NE(ReferencePath(other).value(), path);
  other = one;
  other.validation_file = folder / "validation.tokens";
  EXPECT_NE(ReferencePath(other).value(), path);
  ASSERT_OK(WriteFileAtomically(folder / "train.tokens", "tra1n"));
  EXPECT_NE(ReferencePath(one).value(), path);
}

}  // namespace
}  // namespace shoal::server

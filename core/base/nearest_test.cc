#include "core/base/nearest.h"

#include "gtest/gtest.h"

namespace shoal {
namespace {

const std::vector<std::string> kNames = {"train", "generate", "plan", "data", "status"};

TEST(Nearest, FindsWhatWasMisspelt) {
  EXPECT_EQ(Nearest("trian", kNames), "train");
  EXPECT_EQ(Nearest("dat", kNames), "data");
  EXPECT_EQ(Nearest("generat", kNames), "generate");
}

TEST(Nearest, IsEmptyWhereNothingIsNear) {
  for (const char* text : {"completion", "version", "lora", "stop", "upload", "", "x"}) {
    EXPECT_EQ(Nearest(text, kNames), "") << text;
  }
  EXPECT_EQ(Nearest("train", {}), "");
  EXPECT_EQ(Nearest(std::string(100000, 'x'), kNames), "");
}

TEST(DidYouMean, ListsWhatIsKnownWhereNothingIsNear) {
  EXPECT_EQ(DidYouMean("trian", kNames), "did you mean train?");
  EXPECT_EQ(DidYouMean("lora", {"model", "data"}), "known are model, data");
}

}  // namespace
}  // namespace shoal

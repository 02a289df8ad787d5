#include "client/cli/status_verb.h"

#include <unistd.h>

#include "client/cli/fake_coordinator.h"
#include "client/cli/verb_testing.h"
#include "common/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;

class StatusVerbTest : public testing::Test {
 protected:
  void SetUp() override {
    token_file_ = testing::TempDir() + "/status_token_" + std::to_string(getpid());
    ASSERT_TRUE(WriteFileAtomically(token_file_, coordinator_.token().secret() + "\n").ok());
  }
  void TearDown() override { unlink(token_file_.c_str()); }
  Outcome Status(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"status", "--coordinator", coordinator_.address()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Shoal(arguments);
  }
  FakeCoordinator coordinator_;
  std::string token_file_;
};

TEST_F(StatusVerbTest, ShowsStateAndMembers) {
  const Outcome text = Status({"--token-file", token_file_});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("training, step 3 of 10"));
  EXPECT_THAT(text.out, HasSubstr("worker 1"));
  const Outcome json = Status({"--token-file", token_file_, "--json"});
  const auto line = nlohmann::json::parse(json.out);
  EXPECT_EQ(line["members"][0]["host"], "reef");
}

TEST_F(StatusVerbTest, AWrongTokenOrNoCoordinatorIsAFailureThatSaysSo) {
  ASSERT_TRUE(WriteFileAtomically(token_file_, "not-the-token").ok());
  const Outcome wrong = Status({"--token-file", token_file_});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("coordinator"));
  const Outcome absent = Status({"--token-file", token_file_ + ".absent"});
  EXPECT_EQ(absent.code, 2);
  coordinator_.Shutdown();
  EXPECT_EQ(Status({"--token-file", token_file_}).code, 1);
}

}  // namespace
}  // namespace shoal::cli

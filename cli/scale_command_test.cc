#include <unistd.h>

#include "cli/testing/command_line.h"
#include "cli/testing/fake_coordinator.h"
#include "core/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;

class ScaleCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    token_file_ = testing::TempDir() + "/scale_token_" + std::to_string(getpid());
    ASSERT_TRUE(WriteFileAtomically(token_file_, coordinator_.token().secret() + "\n").ok());
  }
  void TearDown() override { unlink(token_file_.c_str()); }
  Outcome Scale(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "scale");
    arguments.insert(arguments.end(),
                     {"--coordinator", coordinator_.address(), "--token-file", token_file_});
    return Shoal(arguments);
  }
  FakeCoordinator coordinator_;
  std::string token_file_;
};

TEST_F(ScaleCommandTest, SaysWhatIsWantedAndWithWaitWhatIsThere) {
  EXPECT_THAT(Scale({"--servers", "4"}).out, HasSubstr("job-1: 2 servers, 4 wanted"));
  const Outcome waited = Scale({"--servers", "4", "--wait", "--json"});
  EXPECT_EQ(waited.code, 0) << waited.err;
  const nlohmann::json told = nlohmann::json::parse(waited.out);
  EXPECT_EQ(told["servers"], 4);
  EXPECT_EQ(told["wanted"], 4);
  EXPECT_EQ(told["bytes_moved"], 12'000);
  EXPECT_EQ(told["least_bytes"], 11'000);
  EXPECT_EQ(told["bytes_left"], 0);
  EXPECT_EQ(told["draining"], nlohmann::json::array());
  EXPECT_EQ(told["waves"][0]["pause_seconds"], 0.25);
  EXPECT_THAT(Scale({"status"}).out, HasSubstr("before step 7: 11.7 KiB in a pause of 0.25 s"));
}

// As many servers as are wanted may be there before all has moved.
TEST_F(ScaleCommandTest, WaitsForTheLastWave) {
  const Outcome waited = Scale({"--servers", "5", "--rate", "3GB/s", "--wait", "--json"});
  EXPECT_EQ(waited.code, 0) << waited.err;
  EXPECT_EQ(nlohmann::json::parse(waited.out)["bytes_left"], 0);
  EXPECT_EQ(coordinator_.rate(), 3'000'000'000);
  EXPECT_EQ(coordinator_.bytes_left(), 0);
}

TEST_F(ScaleCommandTest, SaysWhatIsLeftAndWhoIsToGo) {
  EXPECT_EQ(Scale({"--servers", "5"}).code, 0);
  const Outcome told = Scale({"status"});
  EXPECT_THAT(told.out, HasSubstr(", 2.9 KiB left"));
  EXPECT_THAT(told.out, HasSubstr("  server-3 is to go\n"));
}

TEST_F(ScaleCommandTest, SaysWhyItIsGivenUp) {
  const Outcome given_up = Scale({"--servers", "9", "--wait"});
  EXPECT_EQ(given_up.code, 1);
  EXPECT_THAT(given_up.err,
              HasSubstr("job-1 keeps 2 servers: server 8: this server needs 1.0 GiB"));
}

TEST_F(ScaleCommandTest, WhatCannotBeIsOneLine) {
  const auto expect = [&](const std::vector<std::string>& arguments, const char* why) {
    const Outcome refused = Scale(arguments);
    EXPECT_EQ(refused.code, 2) << why;
    EXPECT_THAT(refused.err, HasSubstr(why));
    EXPECT_EQ(std::ranges::count(refused.err, '\n'), 1) << refused.err;
  };
  expect({}, "--servers");
  expect({"--servers", "0"}, "--servers: is '0', expected an integer of at least 1");
  expect({"--servers", "12"}, "job-1 can have 1 to 9");
  for (const char* rate : {"0", "0MB/s", "-3MB/s", "200", "200MB", "fast", ""}) {
    expect({"--servers", "4", "--rate", rate}, "--rate");
  }
  expect({"--servers", "4", "--wait", "--dry-run"}, "--dry-run");
}

}  // namespace
}  // namespace shoal::cli

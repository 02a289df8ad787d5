#include "core/base/logging.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace shoal {
namespace {

class LoggingTest : public ::testing::Test {
 protected:
  ~LoggingTest() override { InitLogging({.level = "off"}); }
  // What `log` wrote to stderr.
  template <typename Log>
  std::vector<std::string> Lines(const Log& log) {
    ::testing::internal::CaptureStderr();
    log();
    spdlog::default_logger()->flush();
    return absl::StrSplit(::testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
  }
};

TEST_F(LoggingTest, ALineOfTextNamesTheProcess) {
  InitLogging({.role = "server"});
  const auto lines = Lines([] {
    LogInfo("before");
    NameProcess(3);
    LogWarning("after");
  });
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].ends_with(" server: before")) << lines[0];
  EXPECT_TRUE(lines[1].ends_with(" server-3: after")) << lines[1];
}

TEST_F(LoggingTest, JsonSaysWhoWritesAndOfWhichJobAndStep) {
  InitLogging({.role = "worker", .json = true});
  const auto lines = Lines([] {
    LogInfo("starts");
    NameProcess(0);
    SetLogContext("job-1");
    LogInfo("loads");
    SetLogContext("job-1", 7);
    LogError("fails");
    SetLogContext("");
    LogInfo("waits");
  });
  ASSERT_EQ(lines.size(), 4u);
  std::vector<nlohmann::json> objects;
  for (const std::string& line : lines) {
    objects.push_back(nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false));
    ASSERT_TRUE(objects.back().is_object()) << line;
    EXPECT_EQ(objects.back()["role"], "worker");
    EXPECT_TRUE(objects.back()["pid"].is_number_integer());
    EXPECT_TRUE(objects.back()["ts"].get<std::string>().ends_with("Z"));
  }
  EXPECT_FALSE(objects[0].contains("index"));
  EXPECT_FALSE(objects[0].contains("job"));
  EXPECT_EQ(objects[1]["index"], 0);
  EXPECT_EQ(objects[1]["job"], "job-1");
  EXPECT_FALSE(objects[1].contains("step"));
  EXPECT_EQ(objects[2]["step"], 7);
  EXPECT_EQ(objects[2]["level"], "error");
  EXPECT_FALSE(objects[3].contains("job"));
  EXPECT_FALSE(objects[3].contains("step"));
}

// A message may quote what came from the network.
TEST_F(LoggingTest, WhateverAMessageHoldsALineOfJsonIsOneObject) {
  InitLogging({.role = "server", .json = true});
  const std::string message = "a \"quote\", a\nbreak, a \\ and \xff";
  const auto lines = Lines([&] { LogInfo("{}", message); });
  ASSERT_EQ(lines.size(), 1u);
  const auto object = nlohmann::json::parse(lines[0], nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(object.is_object()) << lines[0];
  EXPECT_EQ(object["message"], "a \"quote\", a\nbreak, a \\ and \xEF\xBF\xBD");
}

}  // namespace
}  // namespace shoal

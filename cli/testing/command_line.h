// For tests: runs the command line as a function and keeps its output; makes a tiny model with
// tokenizer and data for several commands.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "cli/app.h"
#include "core/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

inline Outcome Shoal(const std::vector<std::string>& arguments, const std::string& input = "") {
  std::istringstream in(input);
  std::ostringstream out;
  std::ostringstream err;
  Streams streams{out, err, {}, {}, in};
  const int code = RunShoal(arguments, streams);
  return {code, out.str(), err.str()};
}

// Expects bad input to be refused: nothing on stdout, one line on stderr, exit code 2.
inline void ExpectRefused(const Outcome& outcome, const std::string& words) {
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.out, ::testing::IsEmpty());
  EXPECT_THAT(outcome.err, ::testing::HasSubstr(words));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

inline std::vector<nlohmann::json> JsonLines(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

// A synthetic set of 50 conversations, a tokenizer trained on it and a matching tiny model, in the
// test's own folder.
class TinyModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/tiny_model_" + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
    ASSERT_TRUE(CreateDirectories(folder_).ok());
    train_ = folder_ + "/train.jsonl";
    ASSERT_EQ(Shoal({"data", "synth", "--samples", "50", "--output", train_}).code, 0);
    ASSERT_EQ(Shoal({"data", "tokenizer", train_, "--vocabulary", "300", "--output",
                     folder_ + "/tokenizer"})
                  .code,
              0);
    ASSERT_EQ(Shoal({"model", "init", "--shape", "tiny", "--tokenizer", folder_ + "/tokenizer",
                     "--output", model()})
                  .code,
              0);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string model() const { return folder_ + "/model"; }
  std::string Write(const std::string& name, const std::string& text) const {
    EXPECT_TRUE(WriteFileAtomically(folder_ + "/" + name, text).ok());
    return folder_ + "/" + name;
  }
  std::string folder_;
  std::string train_;
};

}  // namespace shoal::cli

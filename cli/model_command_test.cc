#include "cli/model_command.h"

#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "cli/testing/command_line.h"
#include "core/base/file.h"
#include "core/model/family.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;

class ModelCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/model_command_" + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
    ASSERT_TRUE(CreateDirectories(folder_).ok());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  Outcome Init(const std::string& name, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"model", "init",     "--shape",
                                          "tiny",  "--output", folder_ + "/" + name};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Shoal(arguments);
  }
  std::string folder_;
};

TEST_F(ModelCommandTest, TheSameSeedMakesTheSameModel) {
  ASSERT_EQ(Init("a", {"--seed", "7"}).code, 0);
  ASSERT_EQ(Init("b", {"--seed", "7"}).code, 0);
  ASSERT_EQ(Init("c", {"--seed", "8"}).code, 0);
  const std::string a = *ReadFile(folder_ + "/a/model.safetensors");
  EXPECT_TRUE(a == *ReadFile(folder_ + "/b/model.safetensors"));
  EXPECT_FALSE(a == *ReadFile(folder_ + "/c/model.safetensors"));
}

TEST_F(ModelCommandTest, ShowDescribesWhatInitMade) {
  ASSERT_EQ(Init("model", {"--vocabulary", "320", "--dtype", "bf16"}).code, 0);
  const Outcome text = Shoal({"model", "show", folder_ + "/model"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("LlamaForCausalLM"));
  EXPECT_THAT(text.out, HasSubstr("embedding"));
  const Outcome json = Shoal({"model", "show", folder_ + "/model", "--json"});
  const auto line = nlohmann::json::parse(json.out);
  EXPECT_EQ(line["event"], "model");
  EXPECT_EQ(line["vocabulary"], 320);
  EXPECT_EQ(line["units"].size(), line["layers"].get<size_t>() + 2);
  EXPECT_GE(line["weight_bytes"].get<int64_t>(), 2 * line["parameters"].get<int64_t>());
  EXPECT_LT(line["weight_bytes"].get<int64_t>(), 3 * line["parameters"].get<int64_t>())
      << "bf16 on disk";
}

TEST_F(ModelCommandTest, FamiliesNamesEachOne) {
  const Outcome text = Shoal({"model", "families"});
  EXPECT_EQ(text.code, 0);
  const Outcome json = Shoal({"model", "families", "--json"});
  std::istringstream lines(json.out);
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto family = nlohmann::json::parse(line);
    EXPECT_THAT(text.out, HasSubstr(family["architecture"].get<std::string>()));
  }
  EXPECT_EQ(count, plan::Families().size());
}

TEST_F(ModelCommandTest, AShapeMayComeFromAConfigFile) {
  ASSERT_EQ(Init("model").code, 0);
  const Outcome copy = Shoal({"model", "init", "--shape", folder_ + "/model/config.json",
                              "--output", folder_ + "/copy", "--json"});
  EXPECT_EQ(copy.code, 0) << copy.err;
  const auto line = nlohmann::json::parse(copy.out);
  EXPECT_GT(line["parameters"].get<int64_t>(), 0);
}

TEST_F(ModelCommandTest, BadInputIsRefusedInOneLine) {
  ExpectRefused(Shoal({"model", "init", "--shape", "gigantic", "--output", folder_ + "/x"}),
                "gigantic");
  ASSERT_EQ(Init("model").code, 0);
  ExpectRefused(Init("model"), "holds a model already");
  ExpectRefused(Shoal({"model", "show", folder_ + "/absent"}), "absent");

  const std::string weights = folder_ + "/model/model.safetensors";
  const std::string whole = *ReadFile(weights);
  ASSERT_TRUE(WriteFileAtomically(weights, whole.substr(0, whole.size() / 2)).ok());
  ExpectRefused(Shoal({"model", "show", folder_ + "/model"}), "model.safetensors");
  std::filesystem::remove(weights);
  ExpectRefused(Shoal({"model", "show", folder_ + "/model"}), "safetensors");
  ASSERT_TRUE(WriteFileAtomically(weights, whole).ok());

  const std::string config = *ReadFile(folder_ + "/model/config.json");
  auto changed = nlohmann::json::parse(config);
  changed["architectures"] = {"SquidForCausalLM"};
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/model/config.json", changed.dump()).ok());
  ExpectRefused(Shoal({"model", "show", folder_ + "/model"}), "SquidForCausalLM");
  changed = nlohmann::json::parse(config);
  changed["intermediate_size"] = changed["intermediate_size"].get<int>() * 2;
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/model/config.json", changed.dump()).ok());
  ExpectRefused(Shoal({"model", "show", folder_ + "/model"}), "shape");
}

}  // namespace
}  // namespace shoal::cli

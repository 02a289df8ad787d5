// Training on pairs of replies with the real `shoal train`: against TRL's trainer, and that what it
// compares with is made once.
#include <cmath>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "cli/testing/train_end_to_end.h"
#include "core/base/testing/reference_value.h"
#include "core/data/token_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

using nlohmann::json;
using ::testing::Not;

// A model folder as make_dpo.py has the model.
void WriteModel(const std::string& folder, const json& golden) {
  fs::create_directories(folder);
  json config = golden["config"];
  config.update({{"model_type", "llama"},
                 {"rms_norm_eps", 1e-6},
                 {"rope_theta", 10000.0},
                 {"hidden_act", "silu"}});
  ASSERT_TRUE(WriteFileAtomically(folder + "/config.json", config.dump()).ok());
  json header;
  std::string data;
  for (const auto& [name, shape] : golden["tensors"].items()) {
    int64_t count = 1;
    for (const int64_t size : shape) {
      count *= size;
    }
    const size_t begin = data.size();
    const double mean = name.find("norm") != std::string::npos ? 1 : 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(mean + 0.5 * ReferenceValue(name, i));
      data.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t bytes = text.size();
  const std::string length(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  ASSERT_TRUE(WriteFileAtomically(folder + "/model.safetensors", length + text + data).ok());
}

void AppendReply(const json& prompt, const json& reply, formats::TokenSample& sample) {
  auto tokens = prompt.get<std::vector<int32_t>>();
  const auto first = static_cast<ptrdiff_t>(tokens.size());
  const auto of_reply = reply.get<std::vector<int32_t>>();
  tokens.insert(tokens.end(), of_reply.begin(), of_reply.end());
  std::vector<int32_t> labels(tokens.size(), formats::kIgnoredLabel);
  std::copy(tokens.begin() + first, tokens.end(), labels.begin() + first - 1);
  sample.tokens.insert(sample.tokens.end(), tokens.begin(), tokens.end());
  sample.labels.insert(sample.labels.end(), labels.begin(), labels.end());
}

void WritePairs(const std::string& path, const json& pairs, int64_t vocabulary) {
  auto writer = formats::TokenFileWriter::Create(path, vocabulary, 0).value();
  for (const json& pair : pairs) {
    formats::TokenSample sample;
    AppendReply(pair["prompt"], pair["chosen"], sample);
    sample.chosen = {.tokens = static_cast<uint32_t>(sample.tokens.size()),
                     .targets = static_cast<uint32_t>(pair["chosen"].size())};
    AppendReply(pair["prompt"], pair["rejected"], sample);
    ASSERT_TRUE(writer->Add(sample).ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
}

class TrainPreference : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = FreshDirectory("train_preference");
    golden_ = json::parse(
        std::ifstream(SHOAL_SOURCE_DIRECTORY "/tests/references/dpo.json"))["end_to_end"];
    ASSERT_NO_FATAL_FAILURE(WriteModel(folder_ + "/model", golden_));
    ASSERT_NO_FATAL_FAILURE(
        WritePairs(folder_ + "/pairs.tokens", golden_["pairs"], golden_["config"]["vocab_size"]));
    std::ofstream(folder_ + "/job.yaml")
        << fmt::format(R"(
model: model
data: {{train: pairs.tokens, shuffle: false, max_sequence_tokens: 64, microbatch_tokens: 96}}
train: {{objective: dpo, steps: 20, minibatch_samples: {}, device: cpu, compute: fp32,
    learning_rate: {}, schedule: constant}}
service: {{partition_bytes: 16KiB}}
cluster: {{local: {{servers: 2, workers: 2}}}}
checkpoint: {{directory: checkpoints}}
)",
                       golden_["minibatch"].get<int>(), golden_["learning_rate"].get<double>());
  }
  void TearDown() override { fs::remove_all(folder_); }

  // In a checkpoint folder of that name.
  ProgramResult Train(const std::string& name, const std::vector<std::string>& keys,
                      const std::vector<std::string>& more = {}) const {
    std::vector<std::string> command = {"train", folder_ + "/job.yaml", "--set",
                                        "checkpoint.directory=" + folder_ + "/" + name};
    for (const std::string& key : keys) {
      command.insert(command.end(), {"--set", key});
    }
    command.insert(command.end(), more.begin(), more.end());
    return Shoal(command);
  }
  // The lines of a run that ends well.
  std::vector<json> Lines(const std::string& name, const std::vector<std::string>& keys,
                          const std::string& event = "step") const {
    const ProgramResult run = Train(name, keys, {"--json"});
    EXPECT_EQ(run.exit_code, 0) << run.errors;
    std::vector<json> lines;
    std::istringstream output(run.output);
    for (std::string text; std::getline(output, text);) {
      json line = json::parse(text);
      if (line["event"] == event) {
        lines.push_back(std::move(line));
      }
    }
    return lines;
  }
  std::string HashOf(const std::string& name) const {
    return Shoal({"checkpoint", "hash", folder_ + "/" + name}).output;
  }
  // Beside a token file; empty: there is none.
  std::string ReferenceFile() const {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_)) {
      if (entry.path().extension() == ".f64") {
        return entry.path().string();
      }
    }
    return "";
  }

  std::string folder_;
  json golden_;
};

TEST_F(TrainPreference, IsThatOfTrlsTrainer) {
  for (const json& expected : golden_["runs"]) {
    const std::string loss = expected["loss"];
    SCOPED_TRACE(loss);
    const std::vector<json> steps =
        Lines(loss, {"preference.loss=" + loss,
                     fmt::format("preference.beta={}", expected["beta"].get<double>())});
    ASSERT_EQ(steps.size(), expected["losses"].size());
    for (size_t i = 0; i < steps.size(); ++i) {
      SCOPED_TRACE(fmt::format("step {}", i + 1));
      EXPECT_NEAR(steps[i]["loss"], expected["losses"][i], 1e-4);
      for (const char* key :
           {"rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected"}) {
        EXPECT_NEAR(steps[i][key], expected[key][i], 1e-3) << key;
      }
      EXPECT_NEAR(steps[i]["rewards/accuracies"], expected["rewards/accuracies"][i], 1e-6);
    }
    if (loss == "sigmoid") {
      EXPECT_NEAR(steps[0]["loss"], std::log(2.0), 1e-5);
    }
  }
}

// Packs, workers, servers and stages are others, and so is who waits for whom.
TEST_F(TrainPreference, IsTheSameHoweverItIsRun) {
  const std::vector<std::string> exact = {"train.steps=6", "service.accumulate=exact"};
  const auto with = [&](std::vector<std::string> keys) {
    keys.insert(keys.end(), exact.begin(), exact.end());
    return keys;
  };
  const std::vector<json> steps = Lines("one", exact);
  const std::string hash = HashOf("one");
  for (const auto& [name, keys] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"alone", {"cluster.local.workers=1", "cluster.local.servers=1"}},
           {"drawn", {"plan.assignment=dynamic", "cluster.local.workers=3"}},
           {"layers", {"train.synchronization=layer", "plan.assignment=lb-mini"}},
           {"stages", {"cluster.pipeline.stages=2"}}}) {
    SCOPED_TRACE(name);
    const std::vector<json> others = Lines(name, with(keys));
    ASSERT_EQ(others.size(), steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(others[i]["loss"], steps[i]["loss"]) << i;
      EXPECT_EQ(others[i]["rewards/margins"], steps[i]["rewards/margins"]) << i;
    }
    EXPECT_EQ(HashOf(name), hash);
  }
  const std::vector<json> packed = Lines("packed", with({"data.microbatch_tokens=200"}));
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_NEAR(packed[i]["loss"], steps[i]["loss"], 1e-6) << i;
  }
}

// What is printed of it.
constexpr const char* kTaking = "taking references, 0 of 24 pairs";

TEST_F(TrainPreference, WhatItComparesWithIsMadeOnce) {
  const std::vector<std::string> exact = {"service.accumulate=exact", "train.steps=8"};
  const ProgramResult first = Train("one", exact, {"--steps", "3"});
  ASSERT_EQ(first.exit_code, 0) << first.errors;
  EXPECT_THAT(first.output + first.errors, HasSubstr(kTaking));
  EXPECT_THAT(first.output + first.errors, Not(HasSubstr("ln 2")));
  const std::string file = ReferenceFile();
  ASSERT_FALSE(file.empty());
  const auto made = fs::last_write_time(file);
  for (const auto& [name, more] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"one", {"--resume"}}, {"two", {}}}) {
    const ProgramResult again = Train(name, exact, more);
    ASSERT_EQ(again.exit_code, 0) << again.errors;
    EXPECT_THAT(again.output + again.errors, Not(HasSubstr(kTaking)));
    EXPECT_EQ(fs::last_write_time(file), made);
  }
  EXPECT_EQ(HashOf("one"), HashOf("two"));

  Train("three", exact, {"--steps", "3"});
  fs::remove(file);
  const ProgramResult lost = Train("three", exact, {"--resume"});
  EXPECT_EQ(lost.exit_code, 1) << lost.errors;
  EXPECT_THAT(lost.errors, HasSubstr("made before step 1, are gone: "));
  EXPECT_THAT(lost.errors, HasSubstr(fs::path(file).filename().string() + " is not there"));
}

TEST_F(TrainPreference, NeedsNoReferenceByLength) {
  for (const char* loss : {"simpo", "orpo"}) {
    const std::vector<std::string> keys = {
        fmt::format("preference.loss={}", loss), "preference.beta=2",
        "data.validation.fraction=0.25",         "data.validation.every_steps=10",
        "data.validation.at_start=true",         "cluster.pipeline.stages=2"};
    const std::vector<json> validations = Lines(loss, keys, "validation");
    ASSERT_EQ(validations.size(), 3u);
    EXPECT_TRUE(ReferenceFile().empty());
    const std::vector<json> steps = Lines(fmt::format("{}-steps", loss), keys);
    ASSERT_EQ(steps.size(), 20u);
    EXPECT_LT(steps.back()["loss"], steps.front()["loss"]);
    EXPECT_GT(steps.back()["rewards/margins"], steps.front()["rewards/margins"]);
    EXPECT_TRUE(validations[0].contains("rewards/accuracies"));
  }
}

// Pairs that are not trained on are compared with the model before step 1, too.
TEST_F(TrainPreference, ValidatesOnPairs) {
  const std::vector<json> validations =
      Lines("checkpoints",
            {"data.validation.fraction=0.25", "data.validation.at_start=true", "train.steps=2"},
            "validation");
  ASSERT_EQ(validations.size(), 2u);
  EXPECT_NEAR(validations[0]["loss"], std::log(2.0), 1e-5);
  EXPECT_EQ(validations[0]["rewards/margins"], 0);
  EXPECT_NE(validations[1]["rewards/margins"], 0);
  EXPECT_EQ(fs::file_size(ReferenceFile()), 32 + 24 * 2 * sizeof(double)) << "both in one file";
}

TEST_F(TrainPreference, AdaptersAreTheSameHoweverTheyAreRun) {
  for (const std::string reference : {"precompute", "adapter-off"}) {
    SCOPED_TRACE(reference);
    std::vector<std::string> keys = {"train.steps=6", "service.accumulate=exact", "lora.rank=4",
                                     "preference.reference=" + reference};
    const std::vector<json> steps = Lines(reference, keys);
    ASSERT_EQ(steps.size(), 6u);
    EXPECT_NE(steps.back()["rewards/margins"], 0) << "the adapters do something";
    for (const auto& [name, more] : std::vector<std::pair<std::string, std::vector<std::string>>>{
             {"alone", {"cluster.local.workers=1", "cluster.local.servers=1"}},
             {"drawn", {"plan.assignment=dynamic", "cluster.local.workers=3"}},
             {"residency", {"train.residency=layer", "train.prefetch_units=0"}}}) {
      SCOPED_TRACE(name);
      std::vector<std::string> others = keys;
      others.insert(others.end(), more.begin(), more.end());
      const std::vector<json> run = Lines(reference + name, others);
      ASSERT_EQ(run.size(), steps.size());
      for (size_t i = 0; i < steps.size(); ++i) {
        EXPECT_EQ(run[i]["loss"], steps[i]["loss"]) << i;
        EXPECT_EQ(run[i]["rewards/margins"], steps[i]["rewards/margins"]) << i;
      }
      EXPECT_EQ(HashOf(reference + name), HashOf(reference));
    }
  }
}

TEST_F(TrainPreference, WithoutNewAdaptersTheModelIsThatBeforeStepOne) {
  const std::vector<std::string> keys = {"lora.rank=4",
                                         "train.learning_rate=1e-2",
                                         "service.accumulate=exact",
                                         "data.validation.fraction=0.25",
                                         "data.validation.every_steps=10",
                                         "data.validation.at_start=true"};
  const auto lines = [&](const std::string& reference, const std::string& event) {
    std::vector<std::string> with = keys;
    with.push_back("preference.reference=" + reference);
    return Lines(reference + "-" + event, with, event);
  };
  for (const std::string event : {"step", "validation"}) {
    const std::vector<json> off = lines("adapter-off", event);
    EXPECT_EQ(ReferenceFile().empty(), event == "step");
    const std::vector<json> kept = lines("precompute", event);
    EXPECT_FALSE(ReferenceFile().empty());
    ASSERT_EQ(off.size(), event == "step" ? 20u : 3u);
    ASSERT_EQ(kept.size(), off.size());
    EXPECT_NEAR(off[0]["loss"], std::log(2.0), 1e-5);
    EXPECT_GT(std::abs(off.back()["loss"].get<double>() - std::log(2.0)), 1e-3);
    for (size_t i = 0; i < off.size(); ++i) {
      for (const char* key : {"loss", "rewards/chosen", "rewards/rejected", "rewards/margins"}) {
        EXPECT_NEAR(off[i][key], kept[i][key], 1e-6) << key << " of " << event << " " << i;
      }
    }
  }
}

// What was chosen for a run stays so where it goes on for more passes.
TEST_F(TrainPreference, NewAdaptersAreLeftOutInOnePassByThemselves) {
  const std::vector<std::string> keys = {"lora.rank=4", "service.accumulate=exact"};
  const auto with_steps = [&](const char* steps) {
    std::vector<std::string> with = keys;
    with.push_back(steps);
    return with;
  };
  ASSERT_EQ(Train("one", with_steps("train.steps=6")).exit_code, 0);
  EXPECT_TRUE(ReferenceFile().empty());
  const ProgramResult more = Train("one", with_steps("train.steps=7"), {"--resume"});
  EXPECT_EQ(more.exit_code, 0) << more.errors;
  EXPECT_TRUE(ReferenceFile().empty());
  ASSERT_EQ(Train("two", with_steps("train.steps=7")).exit_code, 0);
  EXPECT_FALSE(ReferenceFile().empty());
}

}  // namespace
}  // namespace shoal::cli

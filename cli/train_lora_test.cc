// Jobs with adapters, with the real `shoal train`, and the folders that they leave.
#include <filesystem>
#include <string>
#include <vector>

#include "cli/testing/train_end_to_end.h"
#include "core/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

class TrainLora : public TrainEndToEnd {
 protected:
  // Exact, in a folder of its own.
  ProgramResult TrainTo(const std::string& name, const std::vector<std::string>& keys,
                        const std::vector<std::string>& options = {}) const {
    std::vector<std::string> more = options;
    for (const std::string& key : {"checkpoint.directory=" + folder_ + "/" + name,
                                   std::string("service.accumulate=exact")}) {
      more.insert(more.end(), {"--set", key});
    }
    for (const std::string& key : keys) {
      more.insert(more.end(), {"--set", key});
    }
    return Train(more);
  }
  // The adapter that the run of that name left.
  std::string Adapter(const std::string& name) const {
    return folder_ + "/" + name + "/huggingface";
  }
  static std::string Tensors(const std::string& folder) {
    return ReadFile(folder + "/adapter_model.safetensors").value_or("none in " + folder);
  }
  std::string Export(const std::string& name, const std::string& output,
                     const std::vector<std::string>& options = {}) const {
    std::vector<std::string> command = {"checkpoint", "export", folder_ + "/" + name, "--output",
                                        folder_ + "/" + output};
    command.insert(command.end(), options.begin(), options.end());
    const ProgramResult result = Shoal(command);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return folder_ + "/" + output;
  }
  // The loss of a model on what is trained.
  double Eval(const std::vector<std::string>& model) const {
    std::vector<std::string> command = {"eval",       "--data",    folder_ + "/train.jsonl",
                                        "--json",     "--answers", "0",
                                        "--template", "chatml",    "--compute",
                                        "fp32"};
    command.insert(command.end(), model.begin(), model.end());
    const ProgramResult result = Shoal(command);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return nlohmann::json::parse(result.output)["loss"].get<double>();
  }
};

TEST_F(TrainLora, AdaptersHaveTheSameBitsOnAnyWorkersAndAfterAResume) {
  const std::vector<std::string> keys = {"lora.rank=4"};
  ASSERT_EQ(TrainTo("undisturbed", keys).exit_code, 0);
  std::vector<std::string> one = keys;
  one.insert(one.end(), {"cluster.local.servers=1", "cluster.local.workers=1"});
  EXPECT_EQ(TrainTo("alone", one).exit_code, 0);
  EXPECT_EQ(TrainTo("resumed", one, {"--steps", "3"}).exit_code, 0);
  const ProgramResult resumed = TrainTo("resumed", keys, {"--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.errors;
  EXPECT_EQ(ParseSteps(resumed.output).front().step, 4);
  for (const std::string name : {"alone", "resumed"}) {
    EXPECT_TRUE(Tensors(Adapter(name)) == Tensors(Adapter("undisturbed"))) << name;
    EXPECT_EQ(Shoal({"checkpoint", "hash", folder_ + "/" + name}).output,
              Shoal({"checkpoint", "hash", folder_ + "/undisturbed"}).output);
  }
  const auto refused = [&](std::vector<std::string> others) {
    others.emplace_back("train.steps=9");
    const ProgramResult other = TrainTo("resumed", others, {"--resume"});
    EXPECT_EQ(other.exit_code, 2) << other.errors;
    return other.errors;
  };
  EXPECT_THAT(refused({"lora.rank=8"}),
              HasSubstr("goes on with the adapters that are there: lora.rank (4 in the "
                        "checkpoint's job, 8 now); take these values back"));
  EXPECT_THAT(refused({"lora.rank=4", "lora.quantize=nf4"}),
              HasSubstr("lora.quantize (none in the checkpoint's job, nf4 now)"));
  EXPECT_THAT(refused({}), HasSubstr("lora.rank (4 in the checkpoint's job, 0 now)"));
  EXPECT_THAT(refused({"lora.rank=4", "lora.targets=[mlp]", "lora.alpha=8"}),
              HasSubstr("lora.alpha (16 in the checkpoint's job, 8 now), lora.targets ("));
  EXPECT_THAT(refused({"lora.from=" + Adapter("undisturbed")}),
              HasSubstr("lora.from (none in the checkpoint's job, "));
}

TEST_F(TrainLora, AnAdapterIsExportedAloneOrMergedAndGoneOnFrom) {
  const ProgramResult first = TrainTo("first", {"lora.rank=4", "lora.targets=[q_proj, mlp]"});
  ASSERT_EQ(first.exit_code, 0) << first.errors;
  EXPECT_THAT(first.errors, HasSubstr("lora: 8 matrices have an adapter (down_proj, gate_proj, "
                                      "q_proj, up_proj), "));
  const std::string alone = Export("first", "alone");
  EXPECT_TRUE(Tensors(alone) == Tensors(Adapter("first")));
  EXPECT_FALSE(fs::exists(alone + "/config.json"));
  EXPECT_TRUE(fs::exists(alone + "/tokenizer.json"));
  const auto config = nlohmann::json::parse(ReadFile(alone + "/adapter_config.json").value());
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 16);
  EXPECT_TRUE(
      fs::equivalent(config["base_model_name_or_path"].get<std::string>(), folder_ + "/model"));
  EXPECT_EQ(config["target_modules"],
            nlohmann::json({"down_proj", "gate_proj", "q_proj", "up_proj"}));

  const std::string merged = Export("first", "merged", {"--merge"});
  EXPECT_FALSE(fs::exists(merged + "/adapter_config.json"));
  const auto first_loss = [&](const std::string& name, const std::vector<std::string>& keys) {
    const ProgramResult run = TrainTo(name, keys);
    EXPECT_EQ(run.exit_code, 0) << run.errors;
    return ParseSteps(run.output).front().loss;
  };
  const double adapted = Eval({"--model", folder_ + "/model", "--adapter", alone});
  EXPECT_NEAR(Eval({"--model", merged}), adapted, 1e-5 * adapted);
  EXPECT_GT(Eval({"--model", folder_ + "/model"}), adapted + 0.02);

  const double trained = first_loss("again", {"lora.from=" + Adapter("first")});
  const auto go_on = [&](const std::string& from) {
    return TrainTo("again", {"lora.from=" + from, "train.steps=9"}, {"--resume"});
  };
  const ProgramResult gone = go_on(folder_ + "/gone");
  EXPECT_EQ(gone.exit_code, 2) << gone.errors;
  EXPECT_THAT(gone.errors, HasSubstr("/gone/adapter_config.json: No such file or directory; a run "
                                     "that goes on reads it again: say where it lies now"));
  ASSERT_EQ(TrainTo("of-rank-2", {"lora.rank=2"}).exit_code, 0);
  const ProgramResult other = go_on(Adapter("of-rank-2"));
  EXPECT_EQ(other.exit_code, 2) << other.errors;
  EXPECT_THAT(other.errors, HasSubstr("is a checkpoint of other adapters than lora.* of the job"));
  const ProgramResult elsewhere = go_on(alone);
  EXPECT_EQ(elsewhere.exit_code, 0) << elsewhere.errors;
  EXPECT_NEAR(first_loss("of-merged", {"model=" + merged}), trained, 1e-5 * trained);
  EXPECT_GT(first_loss("anew", {}), trained + 0.02) << "of the model without an adapter";

  const ProgramResult of_none =
      Shoal({"checkpoint", "export", folder_ + "/anew", "--output", folder_ + "/x", "--merge"});
  EXPECT_EQ(of_none.exit_code, 2);
  EXPECT_THAT(of_none.errors, HasSubstr("has no adapters: export it without --merge"));
}

TEST_F(TrainLora, AdaptersOfAModelInNf4AreMergedWithTheModelThatWasGiven) {
  const std::vector<std::string> keys = {"lora.rank=4", "lora.quantize=nf4"};
  const ProgramResult undisturbed = TrainTo("undisturbed", keys);
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.errors;
  EXPECT_THAT(undisturbed.errors, HasSubstr(" of the model, whose blocks are in NF4\n"));
  ASSERT_EQ(TrainTo("resumed", keys, {"--steps", "3"}).exit_code, 0);
  const ProgramResult resumed = TrainTo("resumed", keys, {"--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.errors;
  EXPECT_TRUE(Tensors(Adapter("resumed")) == Tensors(Adapter("undisturbed")));
  const double adapted = Eval({"--model", folder_ + "/model", "--adapter", Adapter("undisturbed")});
  const std::string merged = Export("undisturbed", "merged", {"--merge"});
  EXPECT_NEAR(Eval({"--model", merged}), adapted, 1e-5 * adapted);
}

TEST_F(TrainLora, PatternsAreExportedAndStayOverAResume) {
  const std::vector<std::string> keys = {
      "lora.rank=4", "lora.targets=[q_proj, mlp]",
      "lora.patterns=[{match: '*.0.mlp.down_proj', rank: 8, alpha: 64}, {match: mlp, rank: 8}]"};
  const ProgramResult first = TrainTo("first", keys, {"--steps", "3"});
  ASSERT_EQ(first.exit_code, 0) << first.errors;
  EXPECT_THAT(first.errors, HasSubstr("lora: 8 matrices have an adapter (rank 4: q_proj; rank 8: "
                                      "down_proj, gate_proj, up_proj), "));
  const auto config =
      nlohmann::json::parse(ReadFile(Export("first", "alone") + "/adapter_config.json").value());
  EXPECT_EQ(config["r"], 8) << "of the first module by name";
  EXPECT_EQ(config["lora_alpha"], 64);
  EXPECT_EQ(config["rank_pattern"], (nlohmann::json{{"model.layers.0.self_attn.q_proj", 4},
                                                    {"model.layers.1.self_attn.q_proj", 4}}));
  EXPECT_EQ(config["alpha_pattern"], (nlohmann::json{{"model.layers.0.mlp.gate_proj", 16},
                                                     {"model.layers.0.mlp.up_proj", 16},
                                                     {"model.layers.0.self_attn.q_proj", 16},
                                                     {"model.layers.1.mlp.down_proj", 16},
                                                     {"model.layers.1.mlp.gate_proj", 16},
                                                     {"model.layers.1.mlp.up_proj", 16},
                                                     {"model.layers.1.self_attn.q_proj", 16}}));
  std::vector<std::string> others = keys;
  others.back() = "lora.patterns=[{match: mlp, rank: 8}]";
  const ProgramResult refused = TrainTo("first", others, {"--resume"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.errors, HasSubstr("goes on with the adapters that are there: lora.patterns "
                                        "([{"));
  const ProgramResult resumed = TrainTo("first", keys, {"--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.errors;
}

// As PEFT scales them by itself.
TEST_F(TrainLora, RankStabilizedAdaptersAreExportedAsSuch) {
  ASSERT_EQ(TrainTo("first", {"lora.rank=8", "lora.rslora=true", "lora.dropout=0.1"}).exit_code, 0);
  for (const std::string& folder : {Adapter("first"), Export("first", "alone")}) {
    const auto config = nlohmann::json::parse(ReadFile(folder + "/adapter_config.json").value());
    EXPECT_EQ(config["use_rslora"], true);
    EXPECT_EQ(config["lora_alpha"], 16);
    EXPECT_EQ(config["lora_dropout"], 0.1);
  }
}

}  // namespace
}  // namespace shoal::cli

// What a job may say of adapters and of pairs, and what it has with them unsaid.
#include "core/job/method_check.h"

#include <string>
#include <utility>
#include <vector>

#include "core/job/job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"

namespace shoal::plan {
namespace {

using testing::HasSubstr;

// The third line and those after it are `more`.
absl::StatusOr<Job> ParseMethod(const std::vector<std::string>& overrides,
                                const std::string& more = "") {
  return ParseJob("model: m\ndata: {train: t}\n" + more, "job.yaml", overrides);
}
std::string RefusedMethod(const std::vector<std::string>& overrides, const std::string& more = "") {
  return std::string(ParseMethod(overrides, more).status().message());
}
std::string RefusedLine(const std::string& line) { return RefusedMethod({}, line); }

TEST(JobLora, RefusesWhatAdaptersCannotHave) {
  EXPECT_EQ(RefusedLine("lora: {alpha: 16}"), "job.yaml:3: lora.alpha needs lora.rank");
  EXPECT_EQ(RefusedLine("lora: {rank: 0, alpha: 32}"), "job.yaml:3: lora.alpha needs lora.rank");
  EXPECT_EQ(RefusedLine("lora: {quantize: nf4}"), "job.yaml:3: lora.quantize needs lora.rank");
  EXPECT_EQ(RefusedLine("lora: {rank: 4, quantize: int4}"),
            "job.yaml:3: lora.quantize is 'int4', expected one of none, nf4");
  EXPECT_EQ(RefusedLine("lora: {rank: 4, targets: []}"),
            "job.yaml:3: lora.targets is empty: name matrices, or leave it out for all");
  EXPECT_EQ(RefusedLine("lora: {rank: 4}\nemulate: {shape: 1.5b}"),
            "job.yaml:3: lora.rank contradicts emulate.shape: its time is that of training the "
            "whole model");
  EXPECT_EQ(RefusedLine("lora: {from: a}\nemulate: {shape: 1.5b}"),
            "job.yaml:3: lora.from contradicts emulate.shape: its time is that of training the "
            "whole model");
}

TEST(JobLora, ReadsPatterns) {
  const std::string line =
      "lora: {rank: 4, patterns: [{match: \"*.mlp.*\", rank: 32, alpha: 64}, {match: q_proj, "
      "alpha: 8}]}";
  const Job job = ParseMethod({}, line).value();
  const std::vector<LoraPattern> patterns = {{.match = "*.mlp.*", .rank = 32, .alpha = 64},
                                             {.match = "q_proj", .rank = {}, .alpha = 8}};
  EXPECT_EQ(job.lora.patterns, patterns);
  EXPECT_EQ(ParseMethod({"lora.rank=4", "lora.patterns=[{match: mlp, rank: 8}]"})->lora.patterns,
            (std::vector<LoraPattern>{{.match = "mlp", .rank = 8, .alpha = {}}}));
}

TEST(JobLora, RefusesPatternsThatSayNothing) {
  const auto refused = [](const std::string& pattern) {
    return RefusedLine("lora: {rank: 4, patterns: [" + pattern + "]}");
  };
  EXPECT_EQ(refused("{rank: 8}"), "job.yaml:3: a pattern of lora.patterns has no match");
  EXPECT_EQ(refused("{match: mlp}"),
            "job.yaml:3: the pattern 'mlp' of lora.patterns has neither rank nor alpha");
  EXPECT_EQ(refused("{match: mlp, rank: 0}"),
            "job.yaml:3: lora.patterns has rank, which is '0', expected an integer from 1 to 4096");
  EXPECT_THAT(refused("{match: mlp, alpha: 0}"), HasSubstr("has alpha, which is '0'"));
  EXPECT_THAT(refused("{match: mlp, ranks: 8}"), HasSubstr("did you mean rank?"));
  EXPECT_EQ(RefusedLine("lora: {patterns: [{match: mlp, rank: 8}]}"),
            "job.yaml:3: lora.patterns needs lora.rank");
}

TEST(JobLora, DropoutIsOfTrainingWhateverTheAdapterIs) {
  EXPECT_EQ(ParseMethod({"lora.rank=4", "lora.dropout=0.1"})->lora.dropout, 0.1);
  EXPECT_EQ(ParseMethod({"lora.from=a", "lora.dropout=0.1"})->lora.dropout, 0.1);
  EXPECT_EQ(RefusedLine("lora: {dropout: 0.1}"), "job.yaml:3: lora.dropout needs lora.rank");
  for (const std::string part : {"1", "-0.1", "nan"}) {
    EXPECT_EQ(
        RefusedLine("lora: {rank: 4, dropout: " + part + "}"),
        "job.yaml:3: lora.dropout is '" + part + "', expected a number of at least 0 and below 1");
  }
  EXPECT_EQ(RefusedLine("lora: {rank: 4, dropout: 0.1}\ntrain: {device: cuda}"),
            "job.yaml:3: lora.dropout contradicts train.device: it is not for GPUs yet");
}

TEST(JobLora, SettlesWhereTheModelBesideItIs) {
  const auto settled = [](std::vector<std::string> keys) {
    keys.emplace_back("service.frozen=auto");
    const Job job = ParseMethod(keys).value();
    EXPECT_EQ(ToYaml(job).find("frozen: auto"), std::string::npos);
    return job.service.frozen;
  };
  EXPECT_EQ(settled({"lora.rank=4"}), Frozen::kFiles);
  EXPECT_EQ(settled({"lora.from=a"}), Frozen::kFiles);
  EXPECT_EQ(settled({}), Frozen::kServers);
  EXPECT_EQ(settled({"lora.rank=4", "lora.quantize=nf4"}), Frozen::kServers);
  EXPECT_EQ(settled({"lora.rank=4", "cluster.coordinator=reef:4000"}), Frozen::kServers);
  Job job = ParseMethod({"lora.rank=4"}).value();
  EXPECT_EQ(job.service.frozen, Frozen::kServers);
  job.service.frozen = Frozen::kAuto;  // as others may send it
  EXPECT_EQ(FromMessage(ToMessage(job), "the job")->service.frozen, Frozen::kFiles);
}

TEST(JobLora, AnAdapterThatIsGoneOnFromSaysTheRest) {
  for (const std::string key : {"rank: 4", "alpha: 32", "rslora: true", "targets: [mlp]",
                                "patterns: [{match: mlp, rank: 8}]"}) {
    EXPECT_EQ(RefusedLine("lora: {from: a, " + key + "}"),
              "job.yaml:3: lora." + key.substr(0, key.find(':')) +
                  " contradicts lora.from: the adapter there says it");
  }
}

// Jobs of earlier checkpoints say all keys.
TEST(JobLora, DefaultsMayStandBesideAnAdapterThatIsGoneOnFrom) {
  const auto job =
      ParseMethod({}, "lora: {from: a, rank: 0, alpha: 16, rslora: false, targets: [all-linear]}");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->lora, LoraOptions{.from = "a"});
}

TEST(JobLora, AnOverrideOfTheRankTurnsItOff) {
  const auto job = ParseMethod({"lora.rank=0"}, "lora: {rank: 8, alpha: 32, targets: [mlp]}");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->lora, LoraOptions());
  EXPECT_EQ(job->train, TrainOptions());
  EXPECT_EQ(RefusedMethod({"lora.alpha=8"}, "lora: {rank: 0}"),
            "--set lora.alpha=8: lora.alpha needs lora.rank");
}

TEST(JobLora, IsReadBackAsItIs) {
  for (const char* lora : {"lora: {rank: 8, alpha: 32, rslora: true, targets: [mlp]}",
                           "lora: {from: a}", "lora: {rank: 0}", ""}) {
    const auto job = ParseMethod({}, lora);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(ParseJob(ToYaml(*job), "again.yaml").value(), *job) << lora;
    EXPECT_EQ(FromMessage(ToMessage(*job), "the job").value(), *job) << lora;
  }
}

TEST(JobLora, HasDefaultsOfItsOwn) {
  const TrainOptions adapted = ParseMethod({"lora.rank=8"}).value().train;
  EXPECT_EQ(std::pair(adapted.learning_rate, adapted.weight_decay), std::pair(2e-4, 0.0));
  const TrainOptions said =
      ParseMethod({}, "lora: {from: a}\ntrain: {learning_rate: 1e-4, weight_decay: 0.1}")
          .value()
          .train;
  EXPECT_EQ(said, TrainOptions()) << "as it is said, though it is the default of others";
}

constexpr const char* kDpo = "train.objective=dpo";

TEST(JobPreference, IsOfPairsAlone) {
  auto job = ParseMethod({kDpo, "preference.loss=hinge", "preference.beta=0.5"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->preference.loss, PreferenceLoss::kHinge);
  EXPECT_EQ(job->preference.beta, 0.5);
  EXPECT_EQ(RefusedMethod({"preference.beta=0.5"}),
            "--set preference.beta=0.5: preference.beta contradicts train.objective: it is of "
            "pairs, for dpo");
  EXPECT_EQ(RefusedMethod({kDpo, "preference.gamma=1"}),
            "--set preference.gamma=1: preference.gamma contradicts preference.loss: it is of "
            "another loss");
  EXPECT_EQ(RefusedMethod({kDpo, "preference.reference=adapter"}),
            "--set preference.reference=adapter: preference.reference is 'adapter', expected one "
            "of auto, precompute, none, adapter-off");
  EXPECT_THAT(RefusedMethod({kDpo, "preference.reference=none"}),
              HasSubstr("only simpo and orpo need none"));
  EXPECT_THAT(RefusedMethod({kDpo, "preference.loss=simpo", "preference.reference=precompute"}),
              HasSubstr("this loss has none"));
  EXPECT_THAT(RefusedMethod({kDpo, "data.train_on=last"}),
              HasSubstr("data.train_on contradicts train.objective: what is learnt of pairs"));
  EXPECT_THAT(RefusedMethod({kDpo, "emulate.shape=1.5b"}),
              HasSubstr("train.objective contradicts emulate.shape: nothing is computed"));
}

TEST(JobPreference, ComparesWithTheModelWithoutNewAdaptersAlone) {
  const std::string off = "preference.reference=adapter-off";
  const auto job = ParseMethod({kDpo, off, "lora.rank=4"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->preference.reference, Reference::kAdapterOff);
  EXPECT_EQ(RefusedMethod({kDpo, off}),
            "--set preference.reference=adapter-off: preference.reference adapter-off needs "
            "adapters: say lora.rank");
  EXPECT_EQ(RefusedMethod({off, "lora.rank=4"}),
            "--set preference.reference=adapter-off: preference.reference contradicts "
            "train.objective: it is of pairs, for dpo");
  EXPECT_THAT(RefusedMethod({kDpo, off, "lora.from=a"}),
              HasSubstr("preference.reference contradicts lora.from: without that adapter"));
  EXPECT_THAT(RefusedMethod({kDpo, off, "lora.rank=4", "preference.loss=simpo"}),
              HasSubstr("this loss has none"));
  EXPECT_THAT(RefusedMethod({kDpo, off, "lora.rank=4", "train.synchronization=layer"}),
              HasSubstr("preference.reference contradicts train.synchronization: adapter-off has"));
  EXPECT_THAT(RefusedMethod({kDpo, off, "lora.rank=4", "cluster.local.workers=2",
                             "cluster.pipeline.stages=2"}),
              HasSubstr("cluster.pipeline.stages contradicts preference.reference adapter-off"));
}

TEST(SettleReference, IsWithoutAdaptersForNewOnesInOnePass) {
  // Of 100 samples, in minibatches of 32.
  const auto settled = [](std::vector<std::string> keys) {
    keys.insert(keys.end(), {"train.minibatch_samples=32"});
    Job job = ParseMethod(keys).value();
    SettleReference(job, 100);
    return job.preference.reference;
  };
  EXPECT_EQ(settled({kDpo, "lora.rank=4", "train.steps=3"}), Reference::kAdapterOff);
  EXPECT_EQ(settled({kDpo, "lora.rank=4", "train.steps=4"}), Reference::kAdapterOff);
  EXPECT_EQ(settled({kDpo, "lora.rank=4", "train.steps=5"}), Reference::kPrecompute);
  EXPECT_EQ(settled({kDpo, "train.steps=3"}), Reference::kPrecompute);
  EXPECT_EQ(settled({kDpo, "lora.from=a", "train.steps=3"}), Reference::kPrecompute);
  EXPECT_EQ(settled({kDpo, "lora.rank=4", "train.steps=3", "train.synchronization=layer"}),
            Reference::kPrecompute);
  EXPECT_EQ(settled({kDpo, "lora.rank=4", "train.steps=3", "train.recompute=full"}),
            Reference::kPrecompute);
  EXPECT_EQ(settled({kDpo, "lora.rank=4", "train.steps=3", "preference.reference=precompute"}),
            Reference::kPrecompute);
  EXPECT_EQ(settled({kDpo, "lora.rank=4", "train.steps=3", "preference.loss=orpo"}),
            Reference::kAuto);
  EXPECT_EQ(settled({"lora.rank=4", "train.steps=3"}), Reference::kAuto);
}

TEST(JobPreference, HasDefaultsOfItsOwn) {
  auto job = ParseMethod({kDpo});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->train.learning_rate, 5e-7);
  EXPECT_EQ(job->train.weight_decay, 0);
  job = ParseMethod({kDpo, "lora.rank=4"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->train.learning_rate, 5e-6);
  EXPECT_EQ(job->train.weight_decay, 0);
  job = ParseMethod({kDpo, "train.learning_rate=1e-4", "train.weight_decay=0.1"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->train.learning_rate, 1e-4) << "as it is said, though it is the default of others";
  EXPECT_EQ(job->train.weight_decay, 0.1);
  const auto again = FromMessage(ToMessage(*job), "the job");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *job);
}

}  // namespace
}  // namespace shoal::plan

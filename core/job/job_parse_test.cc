// Reading and resolving job files, and refusals.
#include <string>
#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "core/job/job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kExample = R"(
model: path/to/hf/folder
data: {train: train.jsonl, template: plain, max_sequence_tokens: 2048, microbatch_tokens: 4096,
       oversize: error, seed: 1}
train:
  {steps: 200, minibatch_samples: 32, compute: auto, learning_rate: 1e-3, schedule: cosine,
   warmup_steps: 10, weight_decay: 0.1, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, clip_norm: 1.0,
   seed: 1}   # compute: auto|fp32|bf16; schedule: constant|linear|cosine
# wire_type: auto|bf16|fp32 (auto follows compute); accumulate: float|exact
service: {wire_type: auto, accumulate: float, partition_bytes: 4MiB}
cluster: {local: {servers: 2, workers: 2}}
checkpoint: {directory: checkpoints, every_steps: 50, keep: 3}
)";
const std::string kMinimal = "model: m\ndata: {train: t}\n";

Job MustParse(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  const auto job = ParseJob(yaml, "job.yaml", overrides);
  EXPECT_TRUE(job.ok()) << Describe(job.status());
  return job.ok() ? *job : Job{};
}

std::string Refusal(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  const auto job = ParseJob(yaml, "job.yaml", overrides);
  EXPECT_TRUE(absl::IsInvalidArgument(job.status())) << yaml;
  const std::string message(Message(job.status()));
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

// The refusal of `text` appended to the minimal job.
std::string RefusalOf(const std::string& text) { return Refusal(kMinimal + text); }

TEST(ParseJob, ReadsTheDocumentedExample) {
  const Job job = MustParse(kExample);
  EXPECT_EQ(job.model, "path/to/hf/folder");
  EXPECT_EQ(job.data.train, "train.jsonl");
  EXPECT_EQ(job.train.steps, 200);
  EXPECT_EQ(job.train.learning_rate, 1e-3);
  EXPECT_EQ(job.train.epsilon, 1e-8);
  EXPECT_EQ(job.train.warmup_steps, 10);
  EXPECT_EQ(job.service.partition_bytes, 4 * kMiB);
  EXPECT_TRUE(job.service.wire_type_auto);
  EXPECT_TRUE(job.cluster.local);
  EXPECT_EQ(job.cluster.servers, 2);
  EXPECT_EQ(job.cluster.workers, 2);
  EXPECT_EQ(job.checkpoint.every_steps, 50);
}

TEST(ParseJob, DefaultsAreThoseOfTheStruct) {
  const Job expected{.model = "m", .data = {.train = "t"}};
  EXPECT_EQ(MustParse(kMinimal), expected);
  EXPECT_EQ(MustParse(kMinimal + "train:\n"), expected);
}

TEST(ParseJob, OverridesWinOverTheFile) {
  const Job job = MustParse(
      kExample,
      {"train.steps=5", "train.warmup_steps=2", "data.fields.prompt=question",
       "data.fields.completion=answer", "data.template_arguments.enable_thinking=false",
       "service.transports=[tcp]", "train.learning_rate=2e-4", "cluster.local={servers: 3}"});
  EXPECT_EQ(job.train.steps, 5);
  EXPECT_EQ(job.train.learning_rate, 2e-4);
  EXPECT_EQ(job.data.fields.at("prompt"), "question");
  EXPECT_EQ(job.data.fields.at("completion"), "answer");
  EXPECT_EQ(job.data.template_arguments.at("enable_thinking"), "false");
  EXPECT_EQ(job.service.transports, std::vector<std::string>{"tcp"});
  EXPECT_EQ(job.cluster.servers, 3);
  EXPECT_EQ(job.cluster.workers, 2);
}

TEST(ParseJob, AnOverrideChoosesBetweenKeysThatExcludeEachOther) {
  const Job remote = MustParse(kExample, {"cluster.coordinator=host:1234", "cluster.workers=4"});
  EXPECT_FALSE(remote.cluster.local);
  EXPECT_EQ(remote.cluster.coordinator, "host:1234");
  EXPECT_EQ(remote.cluster.servers, 0);
  EXPECT_EQ(remote.cluster.workers, 4);
  const Job local =
      MustParse(kMinimal + "cluster: {coordinator: 'host:1'}", {"cluster.local.workers=2"});
  EXPECT_TRUE(local.cluster.local);
  EXPECT_EQ(local.cluster.coordinator, "");
}

TEST(ParseJob, PathsOfOverridesAreRelativeToTheirOwnFolder) {
  auto job = ParseJob(kMinimal, "job.yaml", {"data.train=other.jsonl"}, "/here");
  ASSERT_TRUE(job.ok());
  Resolve(*job, "/there/sub", {});
  EXPECT_EQ(job->data.train, "/here/other.jsonl");
  EXPECT_EQ(job->model, "/there/sub/m");
  EXPECT_EQ(job->checkpoint.directory, "/there/sub/checkpoints");
}

TEST(ParseJob, NamesTheNearestKey) {
  const std::string yaml = kMinimal + "train:\n  steps: 3\n  learning_rat: 1\n";
  EXPECT_EQ(Refusal(yaml),
            "job.yaml:5: unknown key 'learning_rat' in train; did you mean learning_rate?");
  EXPECT_EQ(Refusal("modle: m\n"), "job.yaml:1: unknown key 'modle'; did you mean model?");
  EXPECT_EQ(RefusalOf("data2: 1\n"), "job.yaml:3: unknown key 'data2'; did you mean data?");
  EXPECT_EQ(Refusal("model: m\nlearning_rate: 1\n"),
            "job.yaml:2: unknown key 'learning_rate'; did you mean train.learning_rate?");
  EXPECT_EQ(RefusalOf("cluster: {local: {server: 2}}"),
            "job.yaml:3: unknown key 'server' in cluster.local; did you mean servers?");
  EXPECT_EQ(Refusal(kMinimal, {"train.step=3"}),
            "--set train.step=3: unknown key 'step' in train; did you mean steps?");
  EXPECT_EQ(
      Refusal(kMinimal, {"data.fields.promt=q"}),
      "--set data.fields.promt=q: data.fields has the unknown key 'promt'; did you mean prompt?");
  EXPECT_THAT(Refusal(kMinimal, {"train.steps.more=3"}),
              HasSubstr("train.steps is a map, expected an integer"));
}

TEST(ParseJob, ListsTheKeysWhereNoneIsNear) {
  EXPECT_THAT(RefusalOf("adapters: {rank: 8}\n"),
              StartsWith("job.yaml:3: unknown key 'adapters'; known are model, data, "));
  EXPECT_THAT(RefusalOf("emulate: {shape: 1000}"), HasSubstr("known are 1.3b, "));
}

TEST(PlaceOf, IsWhereTheValueThatHoldsWasGiven) {
  const std::string yaml = "model: m\ndata:\n  train: t\n";
  EXPECT_EQ(PlaceOf("data.train", yaml, "job.yaml"), "job.yaml:3");
  EXPECT_EQ(PlaceOf("data.train", yaml, "job.yaml", {"data.train=u"}), "--set data.train=u");
  EXPECT_EQ(PlaceOf("train.steps", yaml, "job.yaml"), "job.yaml");
  EXPECT_EQ(PlaceOf("model", "{", "job.yaml"), "job.yaml");
}

TEST(ParseJob, RefusesBadValues) {
  const auto train = [](const std::string& text) { return RefusalOf("train: {" + text + "}"); };
  EXPECT_EQ(train("steps: abc"),
            "job.yaml:3: train.steps is 'abc', expected an integer from 1 to 1000000000");
  EXPECT_THAT(train("steps: 0"), HasSubstr("train.steps is '0'"));
  EXPECT_THAT(train("steps: 1.5"), HasSubstr("train.steps is '1.5'"));
  EXPECT_THAT(train("steps: 99999999999999999999"), HasSubstr("train.steps"));
  EXPECT_THAT(train("steps:"), HasSubstr("train.steps is empty"));
  EXPECT_THAT(train("steps: [1]"), HasSubstr("train.steps is a list"));
  EXPECT_THAT(train("beta1: 1"),
              HasSubstr("train.beta1 is '1', expected a number of at least 0 and below 1"));
  EXPECT_THAT(train("learning_rate: nan"), HasSubstr("train.learning_rate"));
  EXPECT_THAT(train("learning_rate: -1e-3"), HasSubstr("train.learning_rate"));
  EXPECT_THAT(train("epsilon: 0"), HasSubstr("expected a number above 0"));
  EXPECT_THAT(train("compute: fp64"),
              HasSubstr("train.compute is 'fp64', expected one of auto, fp32, bf16"));
  EXPECT_THAT(train("seed: -1"), HasSubstr("train.seed"));
  EXPECT_THAT(RefusalOf("service: {partition_bytes: 4 cups}"), HasSubstr("like 4MiB"));
  EXPECT_THAT(RefusalOf("service: {partition_bytes: 1}"), HasSubstr("bytes from 1.0 KiB"));
  EXPECT_THAT(RefusalOf("service: {transports: [shm, rdma]}"),
              HasSubstr("unknown transport 'rdma', expected some of shm, verbs (RDMA), tcp"));
  EXPECT_THAT(RefusalOf("service: {transports: [shm, shm]}"), HasSubstr("twice"));
  EXPECT_THAT(RefusalOf("service: {transports: []}"), HasSubstr("empty list"));
  EXPECT_THAT(RefusalOf("service: {transports: shm}"), HasSubstr("expected a list"));
  for (const char* device : {"mlx5_0:", "mlx5_0:0", ":1", "a b", "mlx5_0:x", "mlx5_0:1:2"}) {
    EXPECT_THAT(RefusalOf(fmt::format("service: {{rdma: {{devices: ['{}']}}}}", device)),
                HasSubstr("expected device names like mlx5_0"));
  }
  EXPECT_THAT(RefusalOf("service: {rdma: {devices: [rxe0, rxe0]}}"), HasSubstr("twice"));
  EXPECT_THAT(RefusalOf("service: {rdma: {devices: rxe0}}"), HasSubstr("expected a list"));
  EXPECT_THAT(RefusalOf("service: {rdma: {mtu: 1500}}"),
              HasSubstr("expected one of auto, 256, 512"));
  EXPECT_THAT(RefusalOf("service: {rdma: {gid_index: -2}}"), HasSubstr("from -1 to 255"));
  EXPECT_THAT(RefusalOf("service: {rdma: {traffic_class: 256}}"), HasSubstr("from 0 to 255"));
  EXPECT_THAT(RefusalOf("service: {rdma: {max_rails: 0}}"), HasSubstr("from 1 to 16"));
  EXPECT_THAT(RefusalOf("service: {encryption: tls}"), HasSubstr("service.encryption"));
  EXPECT_THAT(RefusalOf("cluster: {coordinator: host}"), HasSubstr("expected HOST:PORT"));
  EXPECT_THAT(RefusalOf("cluster: {coordinator: 'host:70000'}"), HasSubstr("expected HOST:PORT"));
  EXPECT_THAT(RefusalOf("cluster: {local: 3}"), HasSubstr("cluster.local is not a map"));
  EXPECT_THAT(RefusalOf("cluster: {local: {servers: 0}}"), HasSubstr("from 1 to"));
  EXPECT_THAT(RefusalOf("checkpoint: {export_huggingface: maybe}"), HasSubstr("true or false"));
  EXPECT_THAT(Refusal("model: m\ndata: {train: t, template_arguments: [a]}"),
              HasSubstr("data.template_arguments is not a map like {enable_thinking: false}"));
  EXPECT_THAT(Refusal("model: m\ndata: {train: t, template_arguments: {a b: 1}}"),
              HasSubstr("has the key 'a b', which is no name of a variable"));
  EXPECT_THAT(Refusal("model: m\ndata: {train: t, fields: {prompt: [1]}}"),
              HasSubstr("prompt, which is a list"));
  EXPECT_EQ(Refusal("data: {train: t}"), "job.yaml: model is missing");
  EXPECT_EQ(Refusal("model: m"), "job.yaml: data.train is missing");
}

TEST(ParseJob, RefusesBrokenDocuments) {
  EXPECT_THAT(Refusal("model: [m\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(Refusal("model: m\ndata: {train: \xE4}\n"), StartsWith("job.yaml:2: not UTF-8"));
  EXPECT_EQ(
      Refusal("model: m\n\tdata: x\n"),
      "job.yaml:2: not valid YAML: a tab indents this line; indent with spaces, in 'data: x'");
  EXPECT_EQ(RefusalOf("cluster:\n  local: {servers: 1, workers: 1  # '}'\ntrain:\n  steps: 3\n"),
            "job.yaml:4: not valid YAML: the { is never closed, in 'local: {servers: 1, workers: "
            "1  # '}''");
  EXPECT_THAT(Refusal("model: m\ndata: {train: \"[\", fields: {a: [}\n"),
              HasSubstr("job.yaml:2: not valid YAML: "));
  EXPECT_THAT(Refusal("model: m\ndata:\n  train: t\n seed: 3\n"),
              HasSubstr("job.yaml:4: not valid YAML: end of map not found, in 'seed: 3'"));
  EXPECT_THAT(Refusal("just text"), HasSubstr("the job is not a map"));
  EXPECT_THAT(Refusal("- a\n- b"), HasSubstr("the job is not a map"));
  EXPECT_THAT(RefusalOf("---\nmodel: n\n"), HasSubstr("a second YAML document"));
  EXPECT_EQ(Refusal("# a comment\n  , or what is left of one\nmodel: m\n"),
            "job.yaml:2: not valid YAML: nothing can begin with what is in column 3");
  EXPECT_EQ(RefusalOf("model: n\n"), "job.yaml:3: model is given twice");
  EXPECT_THAT(RefusalOf("? [a]\n: 1\n"), HasSubstr("a key is not a name"));
  EXPECT_THAT(Refusal(std::string(5000, '[')), HasSubstr("not valid YAML"));
  EXPECT_THAT(Refusal(""), HasSubstr("model is missing"));
  EXPECT_THAT(Refusal(kMinimal, {"train.steps"}), HasSubstr("expected key=value"));
  EXPECT_THAT(Refusal(kMinimal, {"=3"}), HasSubstr("expected key=value"));
  EXPECT_THAT(Refusal(kMinimal, {"train.=3"}), HasSubstr("--set train.=3"));
  EXPECT_THAT(Refusal(kMinimal, {"train.steps=[1"}),
              HasSubstr("--set train.steps=[1: not valid YAML"));
}

TEST(ParseJob, RefusesAValidationThatCannotBe) {
  EXPECT_EQ(RefusalOf("train: {early_stop: {patience: 3}}"),
            "job.yaml:3: train.early_stop.patience needs samples to validate on: say "
            "data.validation.path or data.validation.fraction");
  EXPECT_THAT(RefusalOf("checkpoint: {best: true}"),
              StartsWith("job.yaml:3: checkpoint.best needs"));
  EXPECT_THAT(Refusal(kMinimal, {"data.validation.every_steps=5"}),
              StartsWith("--set data.validation.every_steps=5: data.validation.every_steps needs"));
  EXPECT_THAT(Refusal(kMinimal, {"data.validation.path=a", "data.validation.fraction=0.1"}),
              HasSubstr("contradicts data.validation.path: say one of them"));
  EXPECT_THAT(Refusal(kMinimal, {"data.validation.path=a", "train.early_stop.patience=3"}),
              HasSubstr("data.validation.every_steps: it is 0"));
  EXPECT_THAT(Refusal(kMinimal, {"data.validation.fraction=0.1", "emulate.shape=1.5b"}),
              HasSubstr("data.validation.fraction contradicts emulate.shape: nothing is computed, "
                        "and so there is no loss; say one of them"));
}

TEST(ParseJob, RefusesGroupsByWhatIsWrongWithThem) {
  EXPECT_THAT(RefusalOf("train: {groups: [{match: a, frieze: true}]}"),
              HasSubstr("train.groups has the unknown key 'frieze'; did you mean freeze?"));
  EXPECT_THAT(RefusalOf("train: {groups: [{match: a, weight_decay: -1}]}"),
              HasSubstr("train.groups has weight_decay, which is '-1', expected a number"));
  EXPECT_THAT(RefusalOf("train: {groups: [{freeze: true}]}"),
              HasSubstr("a group of train.groups has no match"));
  EXPECT_THAT(RefusalOf("train: {groups: {match: a}}"), HasSubstr("is no list of maps"));
  EXPECT_THAT(RefusalOf("train: {groups: [{match: a, freeze: true, weight_decay: 0}]}"),
              HasSubstr("the group 'a' of train.groups is frozen"));
  EXPECT_EQ(MustParse(kMinimal + "train: {groups: [{match: a, weight_decay: 0.5}]}").train.groups,
            (std::vector<ParameterGroup>{{.match = "a", .weight_decay = 0.5}}));
}

TEST(ParseJob, MixesSources) {
  const std::string mixture = "model: m\ndata: {mixture: [{path: a}, {path: b}]}\n";
  EXPECT_THAT(MustParse(mixture).data.paths(), ElementsAre("a", "b"));
  EXPECT_THAT(MustParse(mixture).data.weights(), ElementsAre());
  const Job job = MustParse("model: m\n", {"data.mixture=[{path: a, weight: 3}, {path: /b, weight: "
                                           "0.5}]"});
  EXPECT_THAT(job.data.weights(), ElementsAre(3, 0.5));
  EXPECT_THAT(MustParse(mixture, {"data.train=c"}).data.paths(), ElementsAre("c"));
  EXPECT_THAT(MustParse(kMinimal, {"data.mixture=[{path: /c}]"}).data.paths(), ElementsAre("/c"));
  EXPECT_EQ(Refusal("model: m\ndata: {train: c, mixture: [{path: a}]}\n"),
            "job.yaml:2: data.mixture contradicts data.train: say one of them");
  EXPECT_EQ(Refusal("model: m\n", {"data.mixture=[{weight: 1}]"}),
            "--set data.mixture=[{weight: 1}]: a source of data.mixture has no path");
  EXPECT_THAT(
      Refusal("model: m\n", {"data.mixture=[{path: a, weight: 1}, {path: b}]"}),
      HasSubstr("1 of 2 sources of data.mixture have a weight: give it to all, or to none"));
  EXPECT_THAT(Refusal("model: m\n", {"data.mixture=[{path: a, weight: 0}]"}),
              HasSubstr("data.mixture has weight, which is '0', expected a number above 0"));
}

TEST(ParseJob, RefusesContradictions) {
  EXPECT_EQ(RefusalOf("train:\n  steps: 5\n  warmup_steps: 6\n"),
            "job.yaml:5: train.warmup_steps (6) is more than train.steps (5)");
  EXPECT_THAT(Refusal(kExample, {"train.steps=5"}),
              StartsWith("--set train.steps=5: train.warmup_steps (10)"));
  EXPECT_THAT(
      Refusal(kExample, {"train.schedule=wsd", "train.decay_steps=9223372036854775807"}),
      HasSubstr("(10) and train.decay_steps (9223372036854775807) are more than train.steps"));
  EXPECT_THAT(RefusalOf("train: {learning_rate: 1e-4, minimum_learning_rate: 1e-3}"),
              HasSubstr("is more than"));
  EXPECT_EQ(RefusalOf("train:\n  steps: 5\n  epochs: 2\n"),
            "job.yaml:5: train.epochs contradicts train.steps: say one of them");
  const Job job = MustParse(kExample, {"train.epochs=2"});
  EXPECT_EQ(job.train.epochs, 2) << "an override wins";
  EXPECT_EQ(MustParse(ToYaml(job)), job);
  EXPECT_EQ(RefusalOf("train: {decay_steps: 5}"),
            "job.yaml:3: train.decay_steps contradicts train.schedule: only wsd has it");
  EXPECT_THAT(RefusalOf("train: {schedule: wsd, decay_power: 2}"),
              HasSubstr("train.decay_power contradicts train.schedule: only polynomial has it"));
  EXPECT_THAT(RefusalOf("train: {schedule: wsd, steps: 9, warmup_steps: 5, decay_steps: 5}"),
              HasSubstr("train.warmup_steps (5) and train.decay_steps (5) are more than"));
  EXPECT_THAT(RefusalOf("train: {schedule: constant, minimum_learning_rate: 1e-5}"),
              HasSubstr("train.schedule constant"));
  EXPECT_THAT(
      Refusal("model: m\ndata: {train: t, max_sequence_tokens: 4097}"),
      HasSubstr("data.max_sequence_tokens (4097) is more than data.microbatch_tokens (4096)"));
  EXPECT_THAT(RefusalOf("cluster: {coordinator: 'a:1', local: {servers: 1}}"),
              HasSubstr("contradicts cluster.local"));
  EXPECT_THAT(RefusalOf("cluster: {servers: 2, local: {servers: 1}}"),
              HasSubstr("go with cluster.coordinator"));
  EXPECT_THAT(RefusalOf("train: {push: step}\nservice: {accumulate: exact}"),
              HasSubstr("train.push step contradicts service.accumulate exact"));
  EXPECT_THAT(RefusalOf("train: {device: cuda}\nemulate: {shape: 1.5b}\n"),
              HasSubstr("train.device cuda contradicts emulate.shape 1.5b"));
}

TEST(ParseJob, ReadsAPipeline) {
  const Job job = MustParse(kMinimal +
                            "cluster: {local: {workers: 8}, pipeline: {stages: 4, chunks: 2, "
                            "schedule: GIS(3), offload: half, recompute: light, "
                            "device_memory: 2GiB, host_memory: 8GB, copy_rate: 3.1GB/s, "
                            "duplex: true, pace: {forward_flops: 1e12}}}");
  const PipelineOptions& pipeline = job.cluster.pipeline;
  EXPECT_EQ(pipeline.stages, 4);
  EXPECT_EQ(pipeline.chunks, 2);
  EXPECT_EQ(pipeline.schedule, "GIS(3)");
  EXPECT_EQ(pipeline.offload.value, OffloadedChunks::kHalf);
  EXPECT_EQ(pipeline.recompute, Recompute::kLight);
  EXPECT_EQ(pipeline.device_memory, 2 * kGiB);
  EXPECT_EQ(pipeline.host_memory, 8'000'000'000);
  EXPECT_EQ(pipeline.copy_rate, 3.1e9);
  EXPECT_TRUE(pipeline.pace.duplex);
  EXPECT_FALSE(pipeline.pace.paired);
  EXPECT_EQ(pipeline.pace.forward_flops, 1e12);
  EXPECT_TRUE(pipeline.enabled());
  for (const double chunks : {2.25, 2.0}) {
    EXPECT_EQ(MustParse(kMinimal, {"cluster.pipeline.stages=2", "cluster.pipeline.chunks=3",
                                   fmt::format("cluster.pipeline.offload={}", chunks)})
                  .cluster.pipeline.offload.value,
              chunks);
  }
  // Without a number of workers, one group is meant.
  EXPECT_EQ(MustParse(kMinimal, {"cluster.pipeline.stages=3"}).cluster.workers, 3);
}

TEST(ParseJob, APipelineIsOffUntilSomethingAsksForIt) {
  for (const char* off :
       {"cluster.pipeline.stages=1", "cluster.pipeline.chunks=2", "cluster.pipeline.offload=auto",
        "cluster.pipeline.recompute=auto", "cluster.pipeline.host_memory=1GiB",
        "cluster.pipeline.schedule=PO", "train.offload=auto", "train.offload=none",
        "train.recompute=auto", "train.recompute=none"}) {
    EXPECT_FALSE(MustParse(kMinimal, {off}).cluster.pipeline.enabled()) << off;
  }
  for (const char* on :
       {"cluster.pipeline.stages=2", "cluster.pipeline.device_memory=1MiB", "train.offload=full",
        "train.offload=half", "train.offload=1", "train.recompute=full", "train.recompute=light"}) {
    const Job job = MustParse(kMinimal, {on});
    EXPECT_TRUE(job.cluster.pipeline.enabled()) << on;
    EXPECT_THAT(on, HasSubstr(ScheduleKey(job.cluster.pipeline)));
  }
}

// With one stage under train, with several under cluster.pipeline.
TEST(ParseJob, TakesRecomputeAndOffloadFromOnePlace) {
  const Job one = MustParse(kMinimal +
                            "train: {recompute: light, offload: 2.5}\n"
                            "cluster: {pipeline: {chunks: 4}}");
  EXPECT_EQ(one.cluster.pipeline.recompute, Recompute::kLight);
  EXPECT_EQ(one.cluster.pipeline.offload.value, 2.5);
  EXPECT_THAT(ToYaml(one), HasSubstr("  recompute: light\n  offload: 2.5\n"));
  EXPECT_EQ(RefusalOf("cluster:\n  pipeline:\n    recompute: light\n"),
            "job.yaml:5: cluster.pipeline.recompute is of several stages: say train.recompute");
  EXPECT_EQ(RefusalOf("cluster: {pipeline: {offload: none}}\n"),
            "job.yaml:3: cluster.pipeline.offload is of several stages: say train.offload");
  EXPECT_EQ(RefusalOf("train:\n  offload: half\ncluster: {pipeline: {stages: 2}}\n"),
            "job.yaml:4: train.offload is of workers that hold the whole model, and "
            "cluster.pipeline.stages splits it: say cluster.pipeline.offload");
}

TEST(ParseJob, RefusesToWaitForMoreWorkersThanItTakes) {
  EXPECT_EQ(RefusalOf("cluster:\n  local: {workers: 3}\n  min_workers: 4\n"),
            "job.yaml:4: cluster.min_workers is 4, and cluster.local.workers only 3");
}

TEST(ParseJob, TakesAModelFromFilesBesideAdaptersAlone) {
  EXPECT_EQ(RefusalOf("service:\n  frozen: files\n"),
            "job.yaml:4: service.frozen files needs adapters beside a model: say lora.rank");
  EXPECT_EQ(RefusalOf("service: {frozen: files}\nlora: {rank: 4, quantize: nf4}\n"),
            "job.yaml:3: service.frozen contradicts lora.quantize: servers quantise, and files are "
            "as they are");
  EXPECT_EQ(RefusalOf("lora: {rank: 4}\nservice: {frozen: disk}\n"),
            "job.yaml:4: service.frozen is 'disk', expected one of servers, files, auto");
}

TEST(ParseJob, RefusesServersThatCannotBeKeptOrCome) {
  EXPECT_EQ(RefusalOf("cluster:\n  local: {servers: 2}\nservice:\n  replicas: 3\n"),
            "job.yaml:6: service.replicas is 3, and cluster.local.servers only 2");
  EXPECT_EQ(RefusalOf("service:\n  read_replicas: true\n"),
            "job.yaml:4: service.read_replicas is of servers that back partitions up, and "
            "service.replicas is 1: say 2 or more");
  EXPECT_EQ(RefusalOf("cluster:\n  local: {servers: 3}\n  min_servers: 4\n"),
            "job.yaml:4: cluster.min_servers is 4, and cluster.local.servers only 3");
  EXPECT_EQ(RefusalOf("cluster:\n  local: {servers: 3}\n  elastic: true\n"),
            "job.yaml:5: cluster.elastic is of servers that come to a cluster.coordinator; with "
            "cluster.local say shoal scale");
}

TEST(ParseJob, RefusesPipelinesThatCannotBe) {
  const auto with = [](const std::string& text, const std::string& more = "") {
    return Refusal(fmt::format("{}{}cluster: {{pipeline: {{{}}}}}", kMinimal, more, text));
  };
  EXPECT_EQ(RefusalOf("cluster:\n  local: {workers: 3}\n  pipeline: {stages: 2}\n"),
            "job.yaml:4: cluster.local.workers (3) is not a multiple of cluster.pipeline.stages "
            "(2); a worker group is one worker for each stage");
  EXPECT_THAT(RefusalOf("cluster: {coordinator: 'a:1', workers: 3, pipeline: {stages: 2}}"),
              HasSubstr("cluster.workers (3) is not a multiple"));
  EXPECT_EQ(with("stages: 2", "plan: {assignment: dynamic}\n"),
            "job.yaml:4: cluster.pipeline.stages contradicts plan.assignment dynamic");
  EXPECT_THAT(with("chunks: 4", "train: {synchronization: layer, offload: full}\n"),
              HasSubstr("train.offload contradicts train.synchronization layer"));
  EXPECT_THAT(with("device_memory: 1GiB", "emulate: {shape: 1.5b}\n"),
              HasSubstr("cluster.pipeline.device_memory contradicts emulate.shape 1.5b"));
  EXPECT_THAT(with("chunks: 4", "plan: {assignment: dynamic}\ntrain: {recompute: light}\n"),
              HasSubstr("train.recompute contradicts plan.assignment"));
  EXPECT_EQ(with("stages: 2, chunks: 2, offload: 3"),
            "job.yaml:3: cluster.pipeline.offload (3) is more than cluster.pipeline.chunks (2)");
  EXPECT_EQ(with("chunks: 2", "train: {offload: 3}\n"),
            "job.yaml:3: train.offload (3) is more than cluster.pipeline.chunks (2)");
  EXPECT_THAT(with("stages: 0"), HasSubstr("from 1 to 256"));
  EXPECT_THAT(with("offload: most"),
              HasSubstr("is 'most', expected auto, none, half, full or a number"));
  EXPECT_THAT(with("offload: [1]"), HasSubstr("is a list, expected auto, none"));
  EXPECT_THAT(with("recompute: all"), HasSubstr("expected one of auto, none, light"));
  EXPECT_THAT(with("copy_rate: 3 apples"), HasSubstr("expected a rate like 3.1GB/s"));
  EXPECT_THAT(with("device_memory: much"), HasSubstr("cluster.pipeline.device_memory"));
}

TEST(Resolve, SettlesTypesOnce) {
  Job job = MustParse(kExample);
  Resolve(job, "/base", {.cpu_has_bf16 = true});
  EXPECT_EQ(job.train.compute, ComputeType::kBf16);
  EXPECT_EQ(job.service.wire_type, DType::kBF16);
  EXPECT_EQ(job.model, "/base/path/to/hf/folder");
  const Job once = job;
  Resolve(job, "/base", {.gpus = 1});
  EXPECT_EQ(job, once);
  Job plain = MustParse(kExample, {"service.wire_type=bf16"});
  Resolve(plain, "/base", {});
  EXPECT_EQ(plain.train.compute, ComputeType::kFp32);
  EXPECT_EQ(plain.service.wire_type, DType::kBF16);
}

TEST(Resolve, TakesAGpuWhereThisMachineRunsTheWorkersAndHasOne) {
  const auto resolved = [](const std::vector<std::string>& overrides, const MachineOffer& machine) {
    Job job = MustParse(kMinimal, overrides);
    Resolve(job, "/base", machine);
    return std::pair(job.train.device, job.train.compute);
  };
  const MachineOffer gpu = {.gpus = 2};
  const auto cuda = std::pair(DeviceKind::kCuda, ComputeType::kBf16);
  const auto cpu = std::pair(DeviceKind::kCpu, ComputeType::kFp32);
  EXPECT_EQ(resolved({}, gpu), cuda);
  EXPECT_EQ(resolved({}, {}), cpu);
  EXPECT_EQ(resolved({"train.device=cpu"}, gpu), cpu);
  EXPECT_EQ(resolved({"train.device=cuda"}, {}), cuda);
  EXPECT_EQ(resolved({"train.device=cuda", "train.compute=fp32"}, gpu),
            std::pair(DeviceKind::kCuda, ComputeType::kFp32));
  EXPECT_EQ(resolved({"emulate.shape=tiny"}, gpu), cpu);
  // Elsewhere each worker takes its own device.
  const std::string there = "cluster.coordinator=head:4000";
  EXPECT_EQ(resolved({there}, gpu), std::pair(DeviceKind::kAuto, ComputeType::kBf16));
  EXPECT_EQ(resolved({there}, {}), std::pair(DeviceKind::kAuto, ComputeType::kFp32));
  EXPECT_EQ(resolved({there, "train.device=cuda"}, {}), cuda);
}

TEST(SettleEpochs, AreTheStepsOfSoManyPasses) {
  const auto steps = [](double epochs, int64_t samples) {
    TrainOptions train = {.epochs = epochs, .minibatch_samples = 32};
    EXPECT_TRUE(SettleEpochs(train, samples).ok());
    EXPECT_EQ(train.epochs, 0);
    return train.steps;
  };
  EXPECT_EQ(steps(3, 7473), 701);
  EXPECT_EQ(steps(1, 32), 1);
  EXPECT_EQ(steps(1, 33), 2);
  EXPECT_EQ(steps(0.5, 64), 1);
  EXPECT_EQ(steps(0.001, 1), 1);
  EXPECT_EQ(steps(1.1, 320), 11) << "not 11.000000000000002 rounded up";
  TrainOptions train = {.epochs = 1, .minibatch_samples = 32, .warmup_steps = 11};
  EXPECT_REFUSED(SettleEpochs(train, 320), "train.warmup_steps (11)");
  train = {.epochs = 1e6, .minibatch_samples = 1};
  EXPECT_REFUSED(SettleEpochs(train, int64_t{1} << 40), "are more than 1000000000 steps");
}

}  // namespace
}  // namespace shoal::plan

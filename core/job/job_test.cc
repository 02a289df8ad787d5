// Writing jobs back, and describing them.
#include "core/job/job.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"

namespace shoal::plan {
namespace {

std::string RandomText(Random& random) {
  static const std::vector<std::string> pieces = {
      "a", "/", "..",   " ", ": ", "#",    "\"",   "'",   "\\", "\n", "\t", "{",
      "}", "é", "日本", "-", "~",  "null", "true", "1e3", "%",  "&x", "*y", "!"};
  std::string text;
  for (int64_t i = random.Between(1, 12); i > 0; --i) {
    text += pieces[random.Below(pieces.size())];
  }
  return text;
}

PipelineOptions RandomPipeline(Random& random) {
  PipelineOptions pipeline;
  if (random.Below(2) == 0) {
    return pipeline;
  }
  pipeline.stages = random.Between(1, 32);
  pipeline.chunks = random.Between(0, 8);
  pipeline.schedule = RandomText(random);
  pipeline.offload.value = random.Between(-3, pipeline.chunks);
  if (random.Below(2) == 0) {
    pipeline.recompute = static_cast<Recompute>(random.Below(3));
  }
  pipeline.device_memory = random.Between(0, 1 << 30);
  pipeline.host_memory = random.Below(2) == 0 ? 0 : random.Between(0, 1 << 30);
  pipeline.copy_rate = random.Below(2) == 0 ? 0 : std::exp(random.Uniform() * 30);
  pipeline.pace.duplex = random.Below(2) == 0;
  pipeline.pace.paired = random.Below(2) == 0;
  for (double* pace :
       {&pipeline.pace.forward_flops, &pipeline.pace.backward_input_flops,
        &pipeline.pace.backward_weights_flops, &pipeline.pace.offload_bytes_per_second,
        &pipeline.pace.reload_bytes_per_second, &pipeline.pace.elementwise_bytes_per_second,
        &pipeline.pace.message_bytes_per_second, &pipeline.pace.message_latency_seconds}) {
    *pace = random.Below(2) == 0 ? 0 : std::exp(random.Uniform() * 40);
  }
  return pipeline;
}

void AddValidation(Random& random, Job& job) {
  ValidationOptions& validation = job.data.validation;
  validation = {.every_steps = random.Between(0, 100),
                .limit = random.Between(0, 100),
                .at_start = random.Below(2) == 0};
  if (random.Below(2) == 0) {
    validation.path = RandomText(random);
  } else {
    validation.fraction = 0.01 + random.Uniform() / 4;
  }
  if (validation.every_steps > 0) {
    job.train.early_stop = {.patience = random.Between(0, 9), .minimum_change = random.Uniform()};
  }
  job.checkpoint.best = random.Below(2) == 0;
}

std::vector<ParameterGroup> RandomGroups(Random& random) {
  std::vector<ParameterGroup> groups;
  while (random.Below(2) == 0) {
    ParameterGroup& group = groups.emplace_back(ParameterGroup{.match = RandomText(random)});
    if (random.Below(2) == 0) {
      group.freeze = true;
      continue;
    }
    group.learning_rate_scale = random.Uniform();
    if (random.Below(2) == 0) {
      group.weight_decay = random.Uniform();
    }
  }
  return groups;
}

LoraOptions RandomLora(Random& random) {
  LoraOptions lora = {.rank = random.Between(1, 4096),
                      .alpha = 0.5 + static_cast<double>(random.Below(9)),
                      .rslora = random.Below(2) == 0,
                      .targets = {"q_proj", "*.mlp.*"}};
  while (random.Below(2) == 0) {
    LoraPattern& pattern = lora.patterns.emplace_back(LoraPattern{.match = RandomText(random)});
    const uint64_t says = random.Below(3);
    if (says != 0) {
      pattern.rank = random.Between(1, 4096);
    }
    if (says != 1) {
      pattern.alpha = 0.5 + random.Uniform();
    }
  }
  return lora;
}

PreferenceOptions RandomPreference(Random& random) {
  PreferenceOptions preference;
  preference.loss = static_cast<PreferenceLoss>(random.Below(6));
  preference.beta = 0.01 + random.Uniform();
  preference.sft_weight = random.Uniform();
  if (preference.loss == PreferenceLoss::kRobust) {
    preference.label_smoothing = random.Uniform() / 4;
  }
  if (preference.loss == PreferenceLoss::kSimpo) {
    preference.gamma = random.Uniform();
  }
  if (preference.loss == PreferenceLoss::kOrpo) {
    preference.lambda = 0.01 + random.Uniform();
  }
  if (random.Below(2) == 0) {
    preference.reference = preference.has_reference() ? Reference::kPrecompute : Reference::kNone;
  }
  return preference;
}

// Of a job that is to have new adapters.
Reference RandomReference(Random& random, const Job& job) {
  const bool may_be_off = job.train.objective == Objective::kDpo &&
                          job.preference.has_reference() && !job.cluster.pipeline.enabled() &&
                          job.train.synchronization == Synchronization::kStep;
  return may_be_off && random.Below(2) == 0 ? Reference::kAdapterOff : job.preference.reference;
}

Job RandomJob(Random& random) {
  Job job;
  job.model = RandomText(random);
  job.data.train = RandomText(random);
  if (random.Below(2) == 0) {
    job.data.train = "";
    const bool weighted = random.Below(2) == 0;
    while (job.data.mixture.size() < 1 + random.Below(3)) {
      job.data.mixture.push_back(
          {.path = RandomText(random),
           .weight = weighted ? std::optional(random.Uniform() + 0.01) : std::nullopt});
    }
  }
  for (const char* name : {"messages", "prompt", "completion", "input_ids", "labels", "answer"}) {
    if (random.Below(3) == 0) {
      job.data.fields[name] = RandomText(random);
    }
  }
  if (random.Below(4) == 0) {
    job.train.objective = Objective::kPretrain;
    job.data.documents = static_cast<Documents>(random.Below(2));
  } else if (random.Below(3) == 0) {
    job.train.objective = Objective::kDpo;
    job.preference = RandomPreference(random);
  } else {
    const std::array<std::string, 5> templates = {"auto", "plain", "chatml", "llama3", "a b.jinja"};
    job.data.chat_template = templates[random.Below(templates.size())];
    job.data.template_arguments["tone"] = RandomText(random);
    job.data.train_on = static_cast<TrainOn>(random.Below(4));
    job.data.date = random.Below(2) == 0 ? "2026-02-28" : "";
    job.data.oversize = static_cast<OversizePolicy>(random.Below(3));
  }
  job.data.max_sequence_tokens = random.Between(2, 1 << 20);
  job.data.microbatch_tokens = random.Between(job.data.max_sequence_tokens, 1 << 24);
  job.data.seed = random.Next();
  job.data.shuffle = random.Below(2) == 0;
  job.plan.assignment = static_cast<Assignment>(random.Below(7));
  job.plan.cost = static_cast<CostSource>(random.Below(3));
  job.plan.pack_groups = static_cast<int64_t>(random.Below(9));
  job.train.synchronization = job.plan.assignment == Assignment::kDynamic
                                  ? Synchronization::kStep
                                  : static_cast<Synchronization>(random.Below(2));
  if (job.train.objective != Objective::kDpo && random.Below(2) == 0) {
    job.emulate.shape = "1.5b";
  }
  job.emulate.device_flops = std::exp(random.Uniform() * 40);
  job.emulate.time_scale = std::exp(random.Normal());
  job.emulate.speeds = std::vector<double>(1 + random.Below(4), random.Uniform() + 0.01);
  job.train.steps = random.Between(1, 1'000'000'000);
  job.train.minibatch_samples = random.Between(1, 10'000'000);
  job.train.compute = static_cast<ComputeType>(random.Below(3));
  job.train.learning_rate = std::exp(random.Normal() * 5);
  job.train.schedule = static_cast<LearningRateSchedule>(random.Below(6));
  job.train.warmup_steps = random.Between(0, job.train.steps);
  job.train.minimum_learning_rate = job.train.schedule == LearningRateSchedule::kConstant
                                        ? 0
                                        : job.train.learning_rate * random.Uniform();
  if (job.train.schedule == LearningRateSchedule::kWsd) {
    job.train.decay_steps = random.Between(0, job.train.steps - job.train.warmup_steps);
    job.train.decay_shape = static_cast<DecayShape>(random.Below(3));
  }
  if (job.train.schedule == LearningRateSchedule::kPolynomial) {
    job.train.decay_power = 0.01 + random.Uniform();
  }
  job.train.weight_decay = random.Uniform();
  job.train.beta1 = random.Uniform();
  job.train.beta2 = random.Uniform();
  job.train.epsilon = std::exp(random.Normal() * 20);
  job.train.clip_norm = random.Uniform() * 10;
  job.train.residency = static_cast<Residency>(random.Below(3));
  job.train.push = static_cast<PushPolicy>(random.Below(3));
  job.train.prefetch_units = random.Between(0, 64);
  job.train.threads_per_worker = random.Between(0, 1024);
  job.train.seed = random.Below(2) == 0 ? std::numeric_limits<uint64_t>::max() : random.Next();
  job.train.exact_devices = random.Below(2) == 0;
  job.service.wire_type_auto = random.Below(2) == 0;
  job.service.wire_type =
      !job.service.wire_type_auto && random.Below(2) == 0 ? DType::kBF16 : DType::kF32;
  job.service.gradient_type = random.Below(2) == 0 ? DType::kBF16 : DType::kF32;
  job.service.accumulate = job.train.push == PushPolicy::kStep
                               ? Accumulate::kFloat
                               : static_cast<Accumulate>(random.Below(2));
  job.service.memory = static_cast<PartitionMemory>(random.Below(2));
  job.service.on_server_loss = static_cast<OnServerLoss>(random.Below(3));
  job.service.verify_pushes = random.Below(2) == 0;
  job.service.encryption = static_cast<Encryption>(random.Below(3));
  job.service.partition_bytes = random.Between(kKiB, kGiB);
  job.service.push_slots = random.Between(1, kMostPushSlots);
  job.service.transports = random.Below(2) == 0 ? std::vector<std::string>{"tcp"}
                                                : std::vector<std::string>{"verbs", "shm"};
  if (random.Below(2) == 0) {
    job.service.rdma = {.devices = {"mlx5_0", "rocep1s0-f1.2:2"},
                        .gid_index = random.Between(-1, 255),
                        .mtu_bytes = int64_t{256} << random.Below(5),
                        .max_rails = random.Between(1, 16),
                        .traffic_class = random.Between(0, 255),
                        .service_level = random.Between(0, 15),
                        .trusted_network = random.Below(2) == 0};
  }
  job.service.threads_per_server = random.Between(0, 1024);
  job.cluster.local = random.Below(2) == 0;
  job.cluster.coordinator = job.cluster.local || random.Below(3) == 0
                                ? ""
                                : fmt::format("[::1]:{}", random.Between(1, 65535));
  job.cluster.servers = random.Between(job.cluster.local ? 1 : 0, 4096);
  job.cluster.workers = random.Between(job.cluster.local ? 1 : 0, 4096);
  job.cluster.pipeline = RandomPipeline(random);
  if (job.cluster.pipeline.enabled()) {
    job.plan.assignment = Assignment::kLbMini;
    job.train.synchronization = Synchronization::kStep;
    job.emulate.shape.clear();
  }
  if (!job.cluster.pipeline.enabled() && !job.emulate.enabled() &&
      job.train.synchronization == Synchronization::kStep && random.Below(2) == 0) {
    AddValidation(random, job);
  }
  job.train.groups = RandomGroups(random);
  const uint64_t adapters = job.emulate.enabled() ? 0 : random.Below(3);
  if (adapters == 1) {
    job.lora.from = RandomText(random);
  } else if (adapters == 2) {
    job.lora = RandomLora(random);
  }
  if (adapters != 0) {
    job.lora.quantize = static_cast<Quantize>(random.Below(2));
    job.lora.dropout = random.Below(2) == 0 ? random.Uniform() : 0;
  }
  if (adapters == 2) {
    job.service.frozen = job.lora.quantize == Quantize::kNone ? Frozen::kFiles : Frozen::kServers;
    job.preference.reference = RandomReference(random, job);
  }
  job.train.skip_step = {.nonfinite = random.Below(2) == 0,
                         .norm_factor = random.Uniform() * 10,
                         .window = random.Between(1, 1000)};
  job.cluster.workers -= job.cluster.workers % job.cluster.pipeline.stages;
  job.cluster.workers =
      std::max(job.cluster.workers, job.cluster.local ? job.cluster.pipeline.stages : 0);
  job.cluster.lease_seconds = 0.1 + random.Uniform() * 100;
  job.cluster.start_timeout_seconds = 0.1 + random.Uniform() * 1000;
  job.cluster.grace_seconds = random.Uniform() * 100;
  job.cluster.min_workers = random.Between(1, std::max<int64_t>(1, job.cluster.workers));
  job.cluster.elastic = !job.cluster.local && random.Below(2) == 0;
  job.cluster.min_servers = random.Between(1, std::max<int64_t>(1, job.cluster.servers));
  const bool replicated = job.service.memory == PartitionMemory::kHost && job.cluster.servers > 1;
  job.service.replicas = replicated ? 2 : 1;
  job.service.read_replicas = replicated && random.Below(2) == 0;
  job.cluster.token_file = RandomText(random);
  job.cluster.recovery_timeout_seconds = 0.1 + random.Uniform() * 1000;
  job.cluster.coordinator_patience_seconds = random.Uniform() * 1000;
  job.checkpoint.directory = RandomText(random);
  job.checkpoint.every_steps = random.Between(0, 1000);
  job.checkpoint.every_seconds = random.Uniform() * 1000;
  job.checkpoint.keep = random.Between(1, 100);
  job.checkpoint.export_huggingface = random.Below(2) == 0;
  job.checkpoint.export_type = static_cast<ExportType>(random.Below(2));
  job.checkpoint.export_each = random.Below(2) == 0;
  job.queue.max_restarts = random.Between(0, 1000);
  job.log.tensorboard = random.Below(2) == 0;
  job.log.command = random.Below(2) == 0 ? RandomText(random) : "";
  return job;
}

TEST(ToYaml, IsReadBackAsTheSameJob) {
  Random random(7);
  for (int i = 0; i < 300; ++i) {
    const Job job = RandomJob(random);
    const std::string yaml = ToYaml(job);
    const auto reread = ParseJob(yaml, "job.yaml");
    ASSERT_TRUE(reread.ok()) << Describe(reread.status()) << "\n" << yaml;
    EXPECT_EQ(*reread, job) << yaml;
    EXPECT_EQ(ToYaml(*reread), yaml);
  }
}

TEST(ToMessage, IsReadBackAsTheSameJob) {
  Random random(11);
  for (int i = 0; i < 300; ++i) {
    const Job job = RandomJob(random);
    proto::Job message;
    ASSERT_TRUE(message.ParseFromString(ToMessage(job).SerializeAsString()));
    const auto reread = FromMessage(message, "the job");
    ASSERT_TRUE(reread.ok()) << Describe(reread.status()) << "\n" << message.DebugString();
    EXPECT_EQ(*reread, job) << message.DebugString();
  }
}

TEST(FromMessage, HoldsAJobToWhatAFileMaySay) {
  const auto refusal = [](const std::function<void(proto::Job&)>& change) {
    Job job{.model = "m", .data = {.train = "t"}};
    proto::Job message = ToMessage(job);
    change(message);
    return Describe(FromMessage(message, "the job").status());
  };
  const auto has = [](const std::string& text) { return testing::HasSubstr("the job: " + text); };
  EXPECT_THAT(refusal([](proto::Job& job) { job.clear_model(); }), has("model is missing"));
  EXPECT_THAT(refusal([](proto::Job& job) { job.set_model(""); }), has("model is ''"));
  EXPECT_THAT(refusal([](proto::Job& job) { job.mutable_train()->set_steps(0); }),
              has("train.steps is '0', expected an integer from 1 to 1000000000"));
  EXPECT_THAT(refusal([](proto::Job& job) { job.mutable_train()->set_beta1(std::nan("")); }),
              has("train.beta1 is 'nan'"));
  EXPECT_THAT(
      refusal([](proto::Job& job) { job.mutable_cluster()->mutable_pipeline()->set_offload(-7); }),
      has("cluster.pipeline.offload is '-7', expected auto, none"));
  EXPECT_THAT(refusal([](proto::Job& job) { job.mutable_service()->add_transports("pigeon"); }),
              has("service.transports has the unknown transport 'pigeon'"));
  EXPECT_THAT(refusal([](proto::Job& job) {
                job.mutable_data()->mutable_fields()->insert({"x", "y"});
              }),
              has("data.fields has the unknown key 'x'"));
  EXPECT_THAT(refusal([](proto::Job& job) { job.mutable_data()->set_microbatch_tokens(7); }),
              has("data.max_sequence_tokens (2048) is more than data.microbatch_tokens (7)"));
}

TEST(ToYaml, SaysEveryKey) {
  const std::string local = ToYaml(Job{});
  Job job;
  job.cluster = {.local = false, .coordinator = "host:1", .token_file = "token"};
  job.emulate.shape = "1.5b";
  job.log.command = "true";
  job.data.validation.path = "validation";
  job.data.date = "2026-11-27";
  job.lora.from = "adapter";
  const std::string remote = ToYaml(job);
  for (const JobKey& key : JobKeys()) {
    const std::string name = key.path.substr(key.path.rfind('.') + 1) + ":";
    EXPECT_TRUE(local.find(name) != std::string::npos || remote.find(name) != std::string::npos)
        << key.path;
  }
}

TEST(JobKeys, AreDescribed) {
  std::map<std::string, JobKey> keys;
  for (const JobKey& key : JobKeys()) {
    EXPECT_FALSE(key.type.empty() || key.default_value.empty() || key.help.empty()) << key.path;
    EXPECT_TRUE(key.help.ends_with(".")) << key.path;
    EXPECT_TRUE(keys.emplace(key.path, key).second) << key.path;
  }
  EXPECT_EQ(keys.at("model").default_value, "required");
  EXPECT_EQ(keys.at("train.beta2").default_value, "0.95");
  EXPECT_EQ(keys.at("cluster.coordinator").default_value, "none");
}

TEST(JobKeyTable, IsWhatTheDocumentationSays) {
  const std::string path = SHOAL_SOURCE_DIRECTORY "/docs/job-file.md";
  auto document = ReadFile(path);
  ASSERT_TRUE(document.ok()) << Describe(document.status());
  if (std::getenv("SHOAL_WRITE_DOCS") != nullptr) {
    const size_t begin = document->find("| key | value |");
    const size_t end = document->find("\n\n", begin);
    ASSERT_NE(begin, std::string::npos);
    document->replace(begin, end == std::string::npos ? end : end + 1 - begin, JobKeyTable());
    ASSERT_TRUE(WriteFileAtomically(path, *document).ok());
  }
  EXPECT_NE(document->find(JobKeyTable()), std::string::npos)
      << "docs/job-file.md must contain this table (SHOAL_WRITE_DOCS=1 makes this test write it):\n"
      << JobKeyTable();
}

TEST(Differences, AreNamedByKey) {
  Job first;
  first.model = "model";
  first.data.train = "a.jsonl";
  EXPECT_TRUE(Differences(first, first).empty());
  Job second = first;
  second.data.train = "b.jsonl";
  second.train.minibatch_samples = 7;
  second.data.fields = {{"prompt", "question"}};
  const std::vector<JobDifference> differences = Differences(first, second);
  ASSERT_EQ(differences.size(), 3u);
  EXPECT_EQ(differences[0].key, "data.train");
  EXPECT_EQ(differences[0].first, "\"a.jsonl\"");
  EXPECT_EQ(differences[0].second, "\"b.jsonl\"");
  EXPECT_EQ(differences[1].key, "data.fields");
  EXPECT_EQ(differences[1].first, "");
  EXPECT_EQ(differences[1].second, "{prompt: \"question\"}");
  EXPECT_EQ(differences[2].key, "train.minibatch_samples");
  EXPECT_EQ(differences[2].second, "7");
}

TEST(EncryptsTensors, AsControlUnlessTheJobSaysOtherwise) {
  const auto encrypts = [](Encryption encryption, bool control_is_encrypted) {
    return EncryptsTensors({.encryption = encryption}, control_is_encrypted);
  };
  for (const bool control : {false, true}) {
    EXPECT_EQ(*encrypts(Encryption::kAuto, control), control);
    EXPECT_FALSE(*encrypts(Encryption::kOff, control));
  }
  EXPECT_TRUE(*encrypts(Encryption::kOn, true));
  EXPECT_REFUSED(encrypts(Encryption::kOn, false).status(), "keys would travel in plain text");
}

TEST(Matches, TakesAShellsPatterns) {
  const auto matches = [](const char* pattern, const char* tensor) {
    return Matches({.match = pattern}, tensor);
  };
  EXPECT_TRUE(matches("*embed_tokens*", "model.embed_tokens.weight"));
  EXPECT_TRUE(matches("model.layers.[0-7].*", "model.layers.3.mlp.up_proj.weight"));
  EXPECT_FALSE(matches("model.layers.[0-7].*", "model.layers.13.mlp.up_proj.weight"));
  EXPECT_FALSE(matches("model.layers.3", "model.layers.3.mlp.up_proj.weight")) << "the whole name";
}

}  // namespace
}  // namespace shoal::plan

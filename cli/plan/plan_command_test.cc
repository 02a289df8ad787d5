#include <map>

#include "cli/testing/command_line.h"

namespace shoal::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class PlanCommandTest : public TinyModelTest {
 protected:
  void SetUp() override {
    TinyModelTest::SetUp();
    job_ = Write("job.yaml",
                 "model: model\n"
                 "data: {train: train.jsonl, template: chatml, max_sequence_tokens: 512, "
                 "microbatch_tokens: 512, oversize: skip}\n"
                 "train: {steps: 5, minibatch_samples: 16, compute: fp32, warmup_steps: 2}\n"
                 "service: {partition_bytes: 64KiB}\n"
                 "cluster: {local: {servers: 2, workers: 3}}\n");
  }
  Outcome Plan(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"plan", job_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Shoal(arguments);
  }
  // Returns a plan's lines by their event.
  std::map<std::string, std::vector<json>> PlanJson(std::vector<std::string> more = {}) const {
    more.emplace_back("--json");
    const Outcome outcome = Plan(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::map<std::string, std::vector<json>> by_event;
    for (const json& line : JsonLines(outcome.out)) {
      by_event[line["event"]].push_back(line);
    }
    return by_event;
  }
  static int64_t Sum(const std::vector<json>& lines, const std::string& field) {
    int64_t sum = 0;
    for (const json& line : lines) {
      sum += line[field].get<int64_t>();
    }
    return sum;
  }
  std::string job_;
};

TEST_F(PlanCommandTest, SaysWhatEachNumberOfServersNeeds) {
  auto lines = PlanJson({"--servers", "1..4"});
  ASSERT_EQ(lines["servers"].size(), 4u);
  const int64_t partitions = lines["plan"][0]["partitions"];
  for (int64_t servers = 1; servers <= 4; ++servers) {
    const json& size = lines["servers"][static_cast<size_t>(servers - 1)];
    EXPECT_EQ(size["servers"], servers);
    EXPECT_GE(size["partitions_at_most"].get<int64_t>() * servers, partitions);
    EXPECT_LE(size["largest_bytes"].get<int64_t>(), size["total_bytes"].get<int64_t>());
    EXPECT_GE(size["moved_bytes"].get<int64_t>(), size["least_bytes"].get<int64_t>());
    EXPECT_EQ(size["moved_bytes"].get<int64_t>() > 0, servers > 1);
  }
  // As the plan of a job with so many says; the placement may differ by a partition.
  EXPECT_NEAR(lines["servers"][1]["total_bytes"].get<double>(),
              static_cast<double>(Sum(lines["server"], "total_bytes")), 1 << 16);
  EXPECT_THAT(Plan({"--servers", "2..3"}).out, HasSubstr("state to move from one fewer"));
  for (const char* wrong : {"0", "3..2", "2...4", "x", "2..", "1..100000"}) {
    const Outcome refused = Plan({"--servers", wrong});
    EXPECT_EQ(refused.code, 2) << wrong;
    EXPECT_THAT(refused.err, HasSubstr("--servers: is '" + std::string(wrong) + "'")) << wrong;
  }
}

TEST_F(PlanCommandTest, SaysWhetherReplicasAreWorthIt) {
  EXPECT_THAT(Plan().out, ::testing::Not(HasSubstr("A server is lost")));
  const std::string devices = "devices: 3\ndevice_flops: 1e9\ndevice_link: {rate: 1GB/s}\n";
  const auto cluster = [&](const std::string& hours) {
    return Write("cluster.yaml", devices + "losses: {server_mtbf_hours: " + hours +
                                     ", checkpoint_seconds: 0.5, restore_seconds: 120}\n");
  };
  EXPECT_THAT(Plan({"--cluster", cluster("3")}).out,
              HasSubstr("A server is lost every 1h00m: checkpoints (best every 1m00s) cost 5.0% of "
                        "the time, service.replicas: 2"));
  EXPECT_THAT(Plan({"--cluster", cluster("3")}).out, HasSubstr("Choose service.replicas: 2\n"));
  EXPECT_THAT(Plan({"--cluster", cluster("1000000")}).out, HasSubstr("Choose checkpoints\n"));
  auto lines = PlanJson({"--cluster", cluster("3"), "--set", "service.replicas=2"});
  ASSERT_EQ(lines["losses"].size(), 1u);
  EXPECT_NEAR(lines["losses"][0]["checkpoints_share"], 1.0 / 60 + 1.0 / 30, 1e-6);
  EXPECT_EQ(lines["losses"][0]["seconds_between"], 3600);
}

TEST_F(PlanCommandTest, ReplicasThatAreReadTakeWeightsToo) {
  const std::string cluster =
      Write("cluster.yaml",
            "devices: 3\ndevice_flops: 1e9\ndevice_link: {rate: 1GB/s}\n"
            "losses: {server_mtbf_hours: 3, checkpoint_seconds: 0.5, restore_seconds: 120}\n");
  const auto more = [&](const std::vector<std::string>& keys) {
    std::vector<std::string> arguments = {"--cluster", cluster, "--set", "service.replicas=2"};
    arguments.insert(arguments.end(), keys.begin(), keys.end());
    return PlanJson(arguments)["losses"].at(0)["replica_bytes"].get<double>();
  };
  const double state = more({});
  const double read = more({"--set", "service.read_replicas=true"});
  EXPECT_NEAR(read, 1.5 * state, 0.05 * state) << "two buffers in fp32 beside four arrays";
  EXPECT_LT(more({"--set", "lora.rank=4"}), 0.5 * state) << "adapters alone have a state";
}

// New adapters are left out in one pass over the data, which takes another forward pass.
TEST_F(PlanCommandTest, PairsTakeThePassThatTheyAreComparedWith) {
  std::string pairs;
  for (int i = 0; i < 32; ++i) {
    pairs +=
        fmt::format(R"({{"prompt":"{}","chosen":"yes, {} it is","rejected":"no"}})", i, i) + "\n";
  }
  const std::string data = Write("pairs.jsonl", pairs);
  const auto seconds = [&](const std::string& reference) {
    const Outcome outcome =
        Shoal({"simulate", job_, "--json", "--steps", "2", "--set", "data.train=" + data, "--set",
               "train.objective=dpo", "--set", "lora.rank=4", "--set", "train.steps=2", "--set",
               "train.warmup_steps=0", "--set", "preference.reference=" + reference});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    for (const json& line : JsonLines(outcome.out)) {
      if (line["event"] == "simulated") {
        return line["step_seconds"].get<double>();
      }
    }
    return 0.0;
  };
  EXPECT_EQ(seconds("auto"), seconds("adapter-off"));
  EXPECT_GT(seconds("adapter-off"), 1.3 * seconds("precompute"));
}

TEST_F(PlanCommandTest, PartsAddUpToTheWhole) {
  auto lines = PlanJson();
  ASSERT_EQ(lines["plan"].size(), 1u);
  const json& plan = lines["plan"][0];
  const json shown = json::parse(Shoal({"model", "show", model(), "--json"}).out);
  EXPECT_EQ(plan["parameters"], shown["parameters"]);
  EXPECT_EQ(Sum(lines["unit"], "elements"), plan["parameters"]);
  EXPECT_EQ(Sum(lines["unit"], "partitions"), plan["partitions"]);
  EXPECT_EQ(lines["server"].size(), 2u);
  EXPECT_EQ(Sum(lines["server"], "partitions"), plan["partitions"]);
  ASSERT_EQ(lines["worker"].size(), 1u);
  EXPECT_EQ(lines["worker"][0]["workers"], 3);
  EXPECT_EQ(Sum(lines["server"], "total_bytes") + 3 * Sum(lines["worker"], "total_bytes"),
            plan["total_bytes"]);
  // Kept for the step, pushed once at its end in fp32: each worker moves the model once each way.
  EXPECT_EQ(lines["worker"][0]["residency"], "step");
  EXPECT_EQ(plan["get_bytes_per_step"], 3 * 4 * plan["parameters"].get<int64_t>());
  EXPECT_EQ(plan["push_bytes_per_step"], plan["get_bytes_per_step"]);
}

TEST_F(PlanCommandTest, StepsAreThoseOfTheJob) {
  auto three = PlanJson()["step"];
  auto all = PlanJson({"--steps", "100"})["step"];
  EXPECT_EQ(three.size(), 3u);
  EXPECT_EQ(all.size(), 5u) << "train.steps";
  EXPECT_EQ(three[2], all[2]);
  for (const json& step : all) {
    EXPECT_EQ(step["microbatches"].size(), 3u);
    EXPECT_GT(step["tokens"], step["target_tokens"]);
    int64_t microbatches = 0;
    for (const json& of_worker : step["microbatches"]) {
      microbatches += of_worker.get<int64_t>();
    }
    EXPECT_LE(step["tokens"], 512 * microbatches) << "data.microbatch_tokens";
  }
}

TEST_F(PlanCommandTest, OverridesCount) {
  auto lines = PlanJson({"--set", "cluster.local.workers=1", "--set", "train.residency=layer"});
  EXPECT_EQ(lines["step"][0]["microbatches"].size(), 1u);
  EXPECT_EQ(lines["worker"][0]["residency"], "layer");
  EXPECT_GT(lines["plan"][0]["get_bytes_per_step"],
            4 * lines["plan"][0]["parameters"].get<int64_t>());
}

TEST_F(PlanCommandTest, TablesSayTheSame) {
  const Outcome text = Plan();
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("embedding"));
  EXPECT_THAT(text.out, HasSubstr("3 of them"));
  EXPECT_THAT(text.out, HasSubstr("weights are kept for the step"));
  EXPECT_THAT(text.out, HasSubstr("a step has 16 samples, and moves"));
  EXPECT_THAT(text.out, HasSubstr("block.0 to block.")) << "alike blocks have one row";
  EXPECT_THAT(text.out, HasSubstr("it fits this machine: "));
}

TEST_F(PlanCommandTest, SaysWhereThisMachineIsTooSmall) {
  const Outcome text = Plan({"--set", "cluster.local.workers=300", "--set",
                             "data.microbatch_tokens=16000000", "--steps", "1"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(
      text.out,
      HasSubstr("it does not fit this machine: even with train.recompute: full: the job needs "));
  EXPECT_THAT(text.out, HasSubstr("300 workers share "));
  EXPECT_EQ(PlanJson({"--set", "cluster.coordinator=there:1"})["machine"].size(), 0U)
      << "it runs elsewhere";
}

TEST_F(PlanCommandTest, KubernetesGetsCountsMemoryAndGrace) {
  const Outcome patch = Plan({"--kubernetes"});
  ASSERT_EQ(patch.code, 0) << patch.err;
  // A quarter more than 20 MiB and 64 MiB of the processes themselves, in whole 64 MiB.
  EXPECT_THAT(patch.out, HasSubstr("kind: StatefulSet\n"
                                   "metadata: {name: shoal-server}\n"
                                   "spec:\n"
                                   "  replicas: 2\n"
                                   "  template:\n"
                                   "    spec:\n"
                                   "      terminationGracePeriodSeconds: 36\n"
                                   "      containers:\n"
                                   "        - name: server\n"
                                   "          resources:\n"
                                   "            requests: {memory: 64Mi}\n"
                                   "            limits: {memory: 64Mi}\n"));
  EXPECT_THAT(patch.out, HasSubstr("metadata: {name: shoal-worker}\n"
                                   "spec:\n"
                                   "  replicas: 3\n"
                                   "  template:\n"
                                   "    spec:\n"
                                   "      terminationGracePeriodSeconds: 60\n"));
  EXPECT_THAT(patch.out, HasSubstr("            limits: {memory: 128Mi}\n"));
  EXPECT_THAT(patch.out, HasSubstr("metadata: {name: shoal-coordinator}\n"));
  EXPECT_THAT(
      Plan({"--kubernetes", "--set", "cluster.local.workers=5", "--set",
            "cluster.grace_seconds=100.5"})
          .out,
      AllOf(HasSubstr("  replicas: 5\n"), HasSubstr("      terminationGracePeriodSeconds: 136\n")));
  EXPECT_THAT(Plan({"--kubernetes", "--set", "train.device=cuda"}).out,
              ::testing::ContainsRegex("limits: .memory: [0-9]+Mi, nvidia.com/gpu: 1"));
}

TEST_F(PlanCommandTest, BadInputIsRefusedInOneLine) {
  ExpectRefused(Shoal({"plan", folder_ + "/absent.yaml"}), "absent.yaml");
  ExpectRefused(Plan({"--set", "train.stepz=3"}), "stepz");
  ExpectRefused(Plan({"--steps", "0"}), "--steps");
  ExpectRefused(Plan({"--json", "--kubernetes"}), "--kubernetes");
  ExpectRefused(Plan({"--set", "model=absent"}), "absent");
  ExpectRefused(Plan({"--set", "data.train=" + folder_ + "/absent.jsonl"}), "absent.jsonl");
  ExpectRefused(Plan({"--set", "data.validation.fraction=1e-9"}),
                "data.validation.fraction: ");  // as it is trained on, without what is held out
  ExpectRefused(Plan({"--set", "data.oversize=error", "--set", "data.max_sequence_tokens=64"}),
                "train.jsonl:");
}

}  // namespace
}  // namespace shoal::cli

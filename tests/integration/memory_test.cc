// What `shoal plan` says servers and the stages of a pipeline take is what they take.
#include <algorithm>
#include <map>
#include <sstream>

#include "absl/time/clock.h"
#include "core/base/file.h"
#include "core/base/random.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/process_memory.h"
#include "tests/support/program.h"

namespace shoal::testing {
namespace {

constexpr int kVocabulary = 4096;

ProgramResult Shoal(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), BinDirectory() + "/shoal");
  return Program(arguments).Wait(absl::Seconds(30));
}

std::string RandomTokens(int samples, int tokens) {
  Random random(1);
  std::string lines;
  for (int i = 0; i < samples; ++i) {
    std::vector<int64_t> ids;
    for (int t = 0; t < tokens; ++t) {
      ids.push_back(random.Between(0, kVocabulary - 1));
    }
    lines += nlohmann::json{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
  }
  return lines;
}

// Of each server, or stage of a pipeline ("worker"), in no order that means anything.
std::vector<int64_t> Planned(const std::string& job, const std::string& event_name) {
  const ProgramResult plan = Shoal({"plan", job, "--json"});
  EXPECT_EQ(plan.exit_code, 0) << plan.errors;
  std::vector<int64_t> bytes;
  std::istringstream lines(plan.output);
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line);
    if (event.at("event") == event_name) {
      bytes.push_back(event.at("total_bytes"));
    }
  }
  return bytes;
}

// Trains, and watches the processes of that program until they are gone.
std::vector<int64_t> Measured(const std::string& job, const std::string& program) {
  Program train({BinDirectory() + "/shoal", "train", job, "--json"});
  std::map<pid_t, int64_t> peaks;
  const absl::Time deadline = absl::Now() + absl::Seconds(40);
  while (train.Running() && absl::Now() < deadline) {
    for (const pid_t process : ChildrenOf(train.pid(), program)) {
      peaks[process] = std::max(peaks[process], PeakResidentBytes(process));
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  const ProgramResult result = train.Wait(absl::Seconds(1));
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  std::vector<int64_t> bytes;
  for (const auto& [pid, peak] : peaks) {
    bytes.push_back(peak);
  }
  return bytes;
}

// A model so small that a server's own needs, and the slots that it grants, weigh as much as the
// parameters: with larger ones the plan is nearer still.
TEST(Memory, ServersTakeWhatIsPlanned) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take memory of their own";
#endif
  const std::string folder = FreshDirectory("memory");
  ASSERT_TRUE(WriteFileAtomically(folder + "/train.jsonl", RandomTokens(20, 64)).ok());
  const ProgramResult init = Shoal({"model", "init", "--shape", "6m", "--vocabulary",
                                    std::to_string(kVocabulary), "--output", folder + "/model"});
  ASSERT_EQ(init.exit_code, 0) << init.errors;
  for (const auto& [servers, workers, transport] :
       {std::tuple{1, 2, "shm"}, std::tuple{2, 2, "shm"}, std::tuple{2, 1, "tcp"}}) {
    SCOPED_TRACE(fmt::format("{} servers, {} workers, {}", servers, workers, transport));
    const std::string job = fmt::format("{}/{}-{}.yaml", folder, servers, transport);
    ASSERT_TRUE(WriteFileAtomically(job, fmt::format(R"(
model: model
data: {{train: train.jsonl, max_sequence_tokens: 64, microbatch_tokens: 128}}
train: {{steps: 4, minibatch_samples: 4, compute: fp32}}
service: {{transports: [{2}]}}
cluster: {{local: {{servers: {0}, workers: {1}}}}}
checkpoint: {{directory: {0}-{2}, every_steps: 2, export_huggingface: false}}
)",
                                                     servers, workers, transport))
                    .ok());
    std::vector<int64_t> planned = Planned(job, "server");
    std::vector<int64_t> measured = Measured(job, "shoal-server");
    ASSERT_EQ(planned.size(), static_cast<size_t>(servers));
    ASSERT_EQ(measured.size(), planned.size());
    std::ranges::sort(planned);
    std::ranges::sort(measured);
    for (size_t i = 0; i < planned.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(measured[i]), static_cast<double>(planned[i]),
                  0.1 * static_cast<double>(planned[i]));
      std::printf("%d servers over %s: %.1f MiB planned, %.1f MiB measured\n", servers, transport,
                  static_cast<double>(planned[i]) / 1048576,
                  static_cast<double>(measured[i]) / 1048576);
    }
  }
}

// Stages whose activations weigh as much as the parameters. Most take less, for not all that may be
// sent at once is; none takes much more. The pace is given: what is measured differs from time to
// time, and with it the split of the layers.
TEST(Memory, StagesTakeAboutWhatIsPlanned) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take memory of their own";
#endif
  const std::string folder = FreshDirectory("stage_memory");
  ASSERT_TRUE(WriteFileAtomically(folder + "/train.jsonl", RandomTokens(16, 512)).ok());
  const ProgramResult init = Shoal({"model", "init", "--shape", "6m", "--vocabulary",
                                    std::to_string(kVocabulary), "--output", folder + "/model"});
  ASSERT_EQ(init.exit_code, 0) << init.errors;
  for (const char* pipeline :
       {"chunks: 1, schedule: 1F1B, offload: none", "chunks: 2, schedule: PO, offload: 1"}) {
    SCOPED_TRACE(pipeline);
    const std::string job = folder + "/job.yaml";
    ASSERT_TRUE(WriteFileAtomically(job, fmt::format(R"(
model: model
data: {{train: train.jsonl, max_sequence_tokens: 512, microbatch_tokens: 512}}
train: {{steps: 2, minibatch_samples: 8, compute: fp32}}
cluster: {{local: {{servers: 1, workers: 2}}, pipeline: {{stages: 2, {}, pace: {{
  forward_flops: 2e10, backward_input_flops: 2e10, backward_weights_flops: 2e10,
  offload_bytes_per_second: 2e9, reload_bytes_per_second: 2e9}}}}}}
checkpoint: {{directory: {}, export_huggingface: false}}
)",
                                                     pipeline, FreshDirectory("stages")))
                    .ok());
    std::vector<int64_t> planned = Planned(job, "worker");
    std::vector<int64_t> measured = Measured(job, "shoal-worker");
    ASSERT_EQ(planned.size(), 2U);
    ASSERT_EQ(measured.size(), 2U);
    std::ranges::sort(planned);
    std::ranges::sort(measured);
    for (size_t i = 0; i < planned.size(); ++i) {
      EXPECT_LE(measured[i], planned[i] + planned[i] / 10);
      EXPECT_GE(measured[i], planned[i] / 2);
      std::printf("%s: %.1f MiB planned, %.1f MiB measured\n", pipeline,
                  static_cast<double>(planned[i]) / 1048576,
                  static_cast<double>(measured[i]) / 1048576);
    }
  }
}

}  // namespace
}  // namespace shoal::testing

// The golden training steps (a float64 reference) through real coordinator, server and worker
// processes. The first step's gradients are read back from the moments in its checkpoint:
// m = (1 - beta1) clip g.
#include <cmath>
#include <fstream>
#include <map>

#include "core/base/file.h"
#include "core/base/status.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/checkpoint.h"
#include "tests/support/train_run.h"

namespace shoal::testing {
namespace {

using nlohmann::json;

constexpr double kBeta1 = 0.9;
constexpr int kSteps = 3;

// Every golden sequence as a sample of its own; one of a single token predicts nothing and is left
// out.
std::string WriteSamples(const json& golden) {
  const std::string path = FreshDirectory("golden") + "/samples.jsonl";
  std::ofstream file(path);
  for (size_t row = 0; row < golden["rows"].size(); ++row) {
    size_t begin = 0;
    for (const size_t length : golden["sequence_lengths"][row].get<std::vector<size_t>>()) {
      const auto& ids = golden["rows"][row];
      const json sample(std::vector<int>(ids.begin() + static_cast<long>(begin),
                                         ids.begin() + static_cast<long>(begin + length)));
      if (length > 1) {
        file << json{{"input_ids", sample}, {"labels", sample}}.dump() << "\n";
      }
      begin += length;
    }
  }
  return path;
}

using Tensors = std::map<std::string, std::vector<float>>;

Tensors ReadTensors(const std::string& folder, server::Section section) {
  auto checkpoint = server::Checkpoint::Open(folder);
  EXPECT_TRUE(checkpoint.ok()) << Describe(checkpoint.status());
  Tensors tensors;
  for (const plan::UnitSpec& unit : plan::BuildUnits((*checkpoint)->manifest().spec)) {
    for (const plan::TensorSpec& tensor : unit.tensors) {
      auto& values = tensors[tensor.name];
      values.resize(static_cast<size_t>(tensor.count()));
      EXPECT_TRUE((*checkpoint)->Read(section, unit.index, tensor.offset, values).ok());
    }
  }
  return tensors;
}

double Norm(const Tensors& tensors) {
  double squares = 0;
  for (const auto& [name, values] : tensors) {
    for (const float value : values) {
      squares += static_cast<double>(value) * value;
    }
  }
  return std::sqrt(squares);
}

// The first step's gradients against the reference: the norm of every tensor, and where it is the
// sum's scale, the sum.
void CheckGradients(const json& expected, const Tensors& first_moments, double clip) {
  for (const auto& [name, reference] : expected.items()) {
    const auto& moments = first_moments.at(name);
    double squares = 0, sum = 0;
    for (const float moment : moments) {
      const double gradient = moment / ((1 - kBeta1) * clip);
      squares += gradient * gradient;
      sum += gradient;
    }
    const double norm = reference["l2"];
    EXPECT_NEAR(std::sqrt(squares), norm, 1e-4 * norm) << name;
    // A sum of n terms carries rounding of each: compared on the scale of norm * sqrt(n).
    EXPECT_NEAR(sum, reference["sum"].get<double>(),
                1e-4 * norm * std::sqrt(static_cast<double>(moments.size())))
        << name;
  }
}

class Golden : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(Golden, ThreeStepsThroughServersAndWorkers) {
  if (TestData().empty()) {
    GTEST_SKIP() << "SHOAL_TEST_DATA is not set";
  }
  const auto [servers, workers] = GetParam();
  const json golden = json::parse(*ReadFile(TestData() + "/golden/stories260k_steps.json"));
  const std::string checkpoints = FreshDirectory("golden-checkpoints");
  const TrainRun run =
      Train(fmt::format(R"(
model: {}/stories260k
data: {{train: {}, shuffle: false, max_sequence_tokens: 256, microbatch_tokens: 256}}
train: {{steps: 3, minibatch_samples: 6, compute: fp32, learning_rate: 1e-3, schedule: constant,
    warmup_steps: 0,
        weight_decay: 0.1, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, clip_norm: 1.0}}
service: {{partition_bytes: 64KiB}}
cluster: {{local: {{servers: {}, workers: {}}}}}
checkpoint: {{directory: {}, every_steps: 1, keep: 10, export_huggingface: false}}
)",
                        TestData(), WriteSamples(golden), servers, workers, checkpoints));
  ASSERT_EQ(run.program.exit_code, 0) << run.program.errors;
  ASSERT_EQ(run.steps.size(), static_cast<size_t>(kSteps));
  for (int i = 0; i < kSteps; ++i) {
    SCOPED_TRACE(fmt::format("step {}", i + 1));
    const json& expected = golden["steps"][static_cast<size_t>(i)];
    const double loss = expected["loss"], norm = expected["grad_norm"];
    EXPECT_EQ(run.steps[static_cast<size_t>(i)].target_tokens, expected["targets"].get<int64_t>());
    EXPECT_NEAR(run.steps[static_cast<size_t>(i)].loss, loss, 1e-5 * loss);
    EXPECT_NEAR(run.steps[static_cast<size_t>(i)].grad_norm, norm, 1e-4 * norm);
    const std::string folder = server::CheckpointPath(checkpoints, i + 1);
    if (i == 0) {  // the reference holds the first step's gradients alone
      CheckGradients(expected["grads"], ReadTensors(folder, server::Section::kFirstMoment),
                     std::min(1.0, 1.0 / (norm + 1e-6)));
    }
    const double parameters = expected["param_l2_after"];
    EXPECT_NEAR(Norm(ReadTensors(folder, server::Section::kMaster)), parameters, 1e-5 * parameters);
  }
}

INSTANTIATE_TEST_SUITE_P(ServersByWorkers, Golden,
                         ::testing::Values(std::pair(1, 1), std::pair(2, 3), std::pair(3, 2)),
                         [](const auto& shape) {
                           return fmt::format("{}x{}", shape.param.first, shape.param.second);
                         });

}  // namespace
}  // namespace shoal::testing

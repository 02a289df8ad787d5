// The GPU check's parts, run on the CPU at small sizes, and what is reckoned and reported of them.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "bench/gpu/bars.h"
#include "bench/gpu/cpu_flat_kernels.h"
#include "bench/gpu/floors.h"
#include "bench/gpu/gpu_report.h"
#include "bench/gpu/op_checks.h"
#include "bench/gpu/parts.h"
#include "bench/gpu/resident_training.h"
#include "bench/gpu/shapes_json.h"
#include "bench/gpu/timing.h"
#include "bench/gpu/utilisation.h"
#include "bench/gpu/whole_model.h"
#include "common/file.h"
#include "common/random.h"
#include "common/status.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string NewFolder() {
  const std::string folder =
      fmt::format("{}/gpu-{}", ::testing::TempDir(), SecureToken().substr(0, 12));
  fs::create_directories(folder);
  return folder;
}

PartOptions OnTheCpu() {
  PartOptions options;
  options.make_machine = [](int64_t budget) -> absl::StatusOr<worker::Machine> {
    return worker::MakeCpuMachine(2, budget);
  };
  options.flat = &CpuFlatKernels();
  options.machine = {{"device", "the processor"}};
  options.sizes = SmallSizes();
  return options;
}

std::string TestData() {
  const char* const folder = std::getenv("SHOAL_TEST_DATA");
  return folder == nullptr ? "" : folder;
}

PartReport RunOne(std::string_view name, const PartOptions& options) {
  return RunParts(*ChosenParts(name), options).front();
}

TEST(Utilisation, CountsMatricesThreeTimesAndAttentionAsHalf) {
  plan::ModelSpec spec;
  spec.vocabulary = 1000;
  spec.hidden = 64;
  spec.intermediate = 128;
  spec.layers = 3;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_dim = 16;
  const double block = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128;
  const double matrices = 2.0 * 10 * (3 * block + 1000 * 64);
  const double attention = 3 * (4.0 * 10 * 10 * 64) / 2;
  EXPECT_DOUBLE_EQ(TrainingFlops(spec, 10), 3 * (matrices + attention));
  EXPECT_DOUBLE_EQ(TrainingFlops(spec, 20, 2), 6 * (matrices + attention));
  EXPECT_DOUBLE_EQ(Utilisation(989e12, 2.0), 0.5);
}

TEST(Utilisation, ShapesHaveTheParametersThatTheirNamesSay) {
  const json shapes = ShapesJson(PartSizes());
  EXPECT_EQ(shapes["cases"].size(), PartSizes().train.size());
  EXPECT_GE(shapes["attention"].size(), 4u);
  const std::map<std::string, double> parameters = {
      {"124m, 4096 tokens", 124e6}, {"1.3b, 4096 tokens", 1.35e9}, {"7b, 4096 tokens", 7.6e9}};
  size_t found = 0;
  for (const json& c : shapes["cases"]) {
    if (const auto wanted = parameters.find(c["case"]); wanted != parameters.end()) {
      EXPECT_NEAR(c["shape"]["parameters"].get<double>(), wanted->second, 0.05 * wanted->second);
      ++found;
    }
  }
  EXPECT_EQ(found, parameters.size());
}

TEST(Bars, EachFloorIsThatOfACase) {
  for (const TrainFloor& floor : kTrainFloors) {
    EXPECT_TRUE(std::ranges::any_of(PartSizes().train, [&](const TrainCase& c) {
      return c.Name() == floor.name;
    })) << floor.name;
  }
}

TEST(PlanTraining, TakesWhatTheMemoryHasRoomFor) {
  const TrainCase c{"7b", 4096};
  const plan::ModelSpec spec = *c.Spec();
  const TrainPlan whole = *PlanTraining(c, spec, true, 0);
  EXPECT_EQ(whole.recompute, plan::Recompute::kNone);
  EXPECT_FALSE(whole.shared_state);
  // An H200's memory has no room for 12 bytes a parameter beside the rest.
  const TrainPlan shared = *PlanTraining(c, spec, true, int64_t{139} << 30);
  EXPECT_EQ(shared.recompute, plan::Recompute::kNone);
  EXPECT_TRUE(shared.shared_state);
  EXPECT_LT(shared.bytes, whole.bytes);
  const TrainCase longer{"7b", 65536};
  const TrainPlan again = *PlanTraining(longer, spec, true, int64_t{139} << 30);
  EXPECT_EQ(again.recompute, plan::Recompute::kFull);
  const auto none = PlanTraining(longer, spec, true, int64_t{20} << 30);
  EXPECT_TRUE(absl::IsResourceExhausted(none.status()));
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("does not fit: needs"));
}

TEST(PlanTraining, EveryCaseFitsAnH200) {
  for (const TrainCase& c : PartSizes().train) {
    const auto plan = PlanTraining(c, *c.Spec(), true, int64_t{138} << 30);
    ASSERT_TRUE(plan.ok()) << c.Name() << ": " << plan.status().message();
    EXPECT_EQ(plan->recompute, c.recompute) << c.Name();
  }
}

TEST(Floors, AreTheLongerOfBytesAndOperations) {
  const Ceilings ceilings{.copy_bytes_per_second = 100, .matrix_flops_per_second = 1000};
  const Floor memory = FloorOf({.bytes = 500, .flops = 1000}, ceilings);
  EXPECT_TRUE(memory.memory_bound);
  EXPECT_DOUBLE_EQ(memory.seconds, 5);
  const Floor matrix = FloorOf({.bytes = 500, .flops = 8000}, ceilings);
  EXPECT_FALSE(matrix.memory_bound);
  EXPECT_DOUBLE_EQ(matrix.seconds, 8);
}

TEST(Floors, CountEachInputAndOutputOnce) {
  const Cost product = MatmulCost(2, 3, 5, false);
  EXPECT_DOUBLE_EQ(product.bytes, 2 * (10 + 15 + 6));
  EXPECT_DOUBLE_EQ(product.flops, 60);
  EXPECT_DOUBLE_EQ(MatmulCost(2, 3, 5, true).bytes, 2 * (10 + 15) + 8 * 6);
  EXPECT_DOUBLE_EQ(ElementwiseCost(7, 2, 1).bytes, 42);
  const worker::AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 8};
  // q of 32, k and v of 16 each, out of 32, a float for each head.
  EXPECT_DOUBLE_EQ(AttentionForwardCost(shape, 10, 100).bytes, 10 * (2 * (64 + 32) + 16));
  EXPECT_DOUBLE_EQ(AttentionForwardCost(shape, 10, 100).flops, 2 * 100 * 32);
  EXPECT_DOUBLE_EQ(AttentionBackwardCost(shape, 10, 100).bytes, 10 * (4 * (64 + 32) + 16));
  EXPECT_DOUBLE_EQ(AttentionBackwardCost(shape, 10, 100).flops, 5 * 100 * 32);
}

TEST(Timing, MedianIsTheMiddle) {
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 2, 3}), 2.5);
}

TEST(Timing, CallsAreNumberedAndFailuresComeBack) {
  worker::Machine machine = worker::MakeCpuMachine(1);
  int64_t next = 0;
  const auto seconds = MedianSeconds(*machine.ops, 0, [&](int64_t number) {
    EXPECT_EQ(number, next);
    ++next;
  });
  ASSERT_TRUE(seconds.ok());
  EXPECT_GE(*seconds, 0);
  EXPECT_GT(next, 8);  // two batches before those that count
}

TEST(PartReport, IsOnDiskAtEachStepAndComesBack) {
  const std::string folder = NewFolder();
  PartReport report(folder, "some");
  report.AddTable("title", "text", {"a", "b"});
  report.AddRow({"1", "2"});
  EXPECT_EQ(PartReport::Load(folder, "some")->state(), PartState::kUnfinished);
  report.AddBar({"what", "bar", "found", true});
  report.SetValue("figure", 3.5);
  report.Finish(PartState::kDone, "", 2.5);
  ASSERT_TRUE(report.saved().ok());
  const auto loaded = PartReport::Load(folder, "some");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->ToJson(), report.ToJson());
  EXPECT_EQ(loaded->state(), PartState::kDone);
  EXPECT_EQ(loaded->values()["figure"], 3.5);
}

TEST(PartReport, RefusesWhatIsNone) {
  const std::string folder = NewFolder();
  EXPECT_FALSE(PartReport::Load(folder, "missing").ok());
  for (const char* text : {"", "{", "[]", "{}", R"({"state": "well"})", R"({"state": 3})"}) {
    ASSERT_TRUE(WriteFileAtomically(folder + "/bad.json", text).ok());
    EXPECT_FALSE(PartReport::Load(folder, "bad").ok()) << text;
  }
}

TEST(PartReport, AFolderThatCannotBeIsSaid) {
  PartReport report("/proc/no/such/folder", "some");
  report.Finish(PartState::kDone, "", 0);
  EXPECT_FALSE(report.saved().ok());
}

TEST(Parts, AreChosenByName) {
  const auto one = ChosenParts("train");
  ASSERT_TRUE(one.ok());
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ(one->front().name, "train");
  EXPECT_EQ(ChosenParts("")->size(), Parts().size());
  EXPECT_THAT(std::string(ChosenParts("trane").status().message()), HasSubstr("machine, "));
}

TEST(Parts, MachineMeasuresCeilingsAndCopies) {
  const PartReport report = RunOne("machine", OnTheCpu());
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  for (const char* key :
       {"copy_bytes_per_second", "matrix_flops_per_second", "to_device_bytes_per_second",
        "to_host_bytes_per_second", "duplex_bytes_per_second"}) {
    EXPECT_GT(report.values()[key].get<double>(), 0) << key;
  }
  EXPECT_EQ(report.tables().front().rows[1], (std::vector<std::string>{"device", "the processor"}));
}

TEST(Parts, KernelsHaveEveryOperatorOfTheModel) {
  const PartReport report = RunOne("kernels", OnTheCpu());
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  std::string names;
  for (const std::vector<std::string>& row : report.tables().front().rows) {
    names += row.front() + "\n";
    if (row.front() != "operator") {
      EXPECT_GE(std::stod(row[4]), 0.01) << row.front();
    }
  }
  for (const char* name : {"Matmul, qkv, forward",
                           "Matmul, down, weight gradient",
                           "AttentionForward",
                           "AttentionBackward",
                           "RmsNormForward",
                           "AddRmsNormForward",
                           "RmsNormBackwardInput",
                           "RmsNormBackwardWeight",
                           "RotaryForward",
                           "RotaryBackward",
                           "SwiGluForward",
                           "SwiGluBackward",
                           "Add\n",
                           "AddBias",
                           "BiasBackward",
                           "GatherRows",
                           "ScatterRows",
                           "EmbeddingForward",
                           "EmbeddingBackward",
                           "SoftmaxCrossEntropy",
                           "Convert",
                           "Zero",
                           "AdamW",
                           "accumulate, fp32 exact",
                           "gradient statistics"}) {
    EXPECT_THAT(names, HasSubstr(name));
  }
  EXPECT_EQ(report.bars().size(), 1u);
  EXPECT_EQ(report.values()["attention"].size(), 4u);
}

TEST(Parts, TrainGivesEachCaseItsRate) {
  const PartReport report = RunOne("train", OnTheCpu());
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  const json& cases = report.values()["cases"];
  ASSERT_EQ(cases.size(), 2u);
  for (const json& c : cases) {
    // Random weights know nothing: the loss is that of a uniform guess.
    EXPECT_NEAR(c["loss"].get<double>(), std::log(512.0), 0.1);
    EXPECT_NEAR(c["tokens_per_second"].get<double>() * c["step_seconds"].get<double>(),
                c["tokens"].get<double>(), 1e-6);
    EXPECT_GT(c["step_seconds"], c["microbatch_seconds"]);
    EXPECT_GT(c["utilisation"].get<double>(), 0);
  }
}

TEST(Parts, TrainGoesOnWhereACaseDoesNotFit) {
  PartOptions options = OnTheCpu();
  options.sizes.train = {{"tiny", 1 << 15}, {"tiny", 64}};
  options.make_machine = [](int64_t) -> absl::StatusOr<worker::Machine> {
    return worker::MakeCpuMachine(2, 16 << 20);
  };
  const PartReport report = RunOne("train", options);
  EXPECT_EQ(report.state(), PartState::kDone) << report.why();
  const auto& rows = report.tables().front().rows;
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_THAT(rows[1].back(), HasSubstr("does not fit: needs"));
  EXPECT_EQ(rows[2].back(), "");
  EXPECT_EQ(report.values()["cases"][0]["left_out"], rows[1].back());
}

TEST(Parts, TrainWithoutAnOptimizerSaysSo) {
  PartOptions options = OnTheCpu();
  options.flat = nullptr;
  const PartReport report = RunOne("train", options);
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  EXPECT_EQ(report.tables().front().rows[1].back(), "without the optimizer");
  EXPECT_EQ(report.values()["cases"][0]["tokens_per_second"], 0);
}

TEST(Parts, TrainLeavesOutWhatThereIsNoTimeFor) {
  PartOptions options = OnTheCpu();
  options.budget = absl::ZeroDuration();
  const PartReport report = RunOne("train", options);
  EXPECT_EQ(report.state(), PartState::kDone) << report.why();
  EXPECT_EQ(report.tables().front().rows[1].back(), "no time was left");
}

TEST(Parts, OffloadIsMeasured) {
  const PartReport report = RunOne("offload", OnTheCpu());
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  ASSERT_EQ(report.tables().size(), 3u);
  const std::vector<std::string>& row = report.tables()[1].rows.at(1);
  EXPECT_EQ(row[0], "64");
  EXPECT_GT(std::stod(row[3]), 0);
  EXPECT_GT(std::stod(row[4]), 0);
  EXPECT_THAT(row[6], HasSubstr("of 8 chunks"));
  EXPECT_EQ(row[12], "yes");
  EXPECT_EQ(report.tables()[2].rows.at(2).at(1), "128");
}

// As where pinning all that is asked for fails.
TEST(HostPiece, TakesAsMuchAsThereIs) {
  PartOptions options = OnTheCpu();
  PartReport report("", "offload");
  PartRun run(options, report);
  EXPECT_EQ((*HostPiece::Make(run, 1 << 20))->budget_bytes(), 1 << 20);
  EXPECT_EQ((*HostPiece::Make(run, 0))->budget_bytes(), 0);
  const int64_t too_much = int64_t{1} << 60;
  EXPECT_FALSE(HostPiece::Make(run, too_much).ok());
}

// Where the device has little memory and the host much, offload makes sequences longer.
TEST(Parts, OffloadMakesSequencesLonger) {
  PartOptions options = OnTheCpu();
  options.sizes.offload_tokens = {};
  options.sizes.longest_tokens = 2048;
  options.make_machine = [](int64_t) -> absl::StatusOr<worker::Machine> {
    return worker::MakeCpuMachine(2, 5 << 20);
  };
  const PartReport report = RunOne("offload", options);
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  const auto& rows = report.tables()[2].rows;
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_GT(std::stoi(rows[2][1]), std::stoi(rows[1][1]));
}

TEST(Parts, OffloadLeavesOutWhatThereIsNoTimeFor) {
  PartOptions options = OnTheCpu();
  options.budget = absl::ZeroDuration();
  const PartReport report = RunOne("offload", options);
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  EXPECT_EQ(report.tables()[1].rows.at(1).at(1), "no time was left");
  EXPECT_THAT(report.tables()[2].rows.at(2).at(0), HasSubstr("as far as there was time"));
}

TEST(Parts, AMachineThatCannotBeMadeFailsThem) {
  PartOptions options = OnTheCpu();
  options.data = "anywhere";
  options.make_machine = [](int64_t) -> absl::StatusOr<worker::Machine> {
    return Internal("the device is gone");
  };
  for (const PartReport& report : RunParts(*ChosenParts(""), options)) {
    EXPECT_NE(report.state(), PartState::kDone) << report.name();
    EXPECT_NE(report.why(), "") << report.name();
  }
}

// What a new process does after one whose GPU was lost within a case.
TEST(Parts, TrainGoesOnAfterACaseThatLostTheDevice) {
  PartOptions options = OnTheCpu();
  options.output = NewFolder();
  options.make_machine = [](int64_t) -> absl::StatusOr<worker::Machine> {
    return Internal("an illegal access");
  };
  options.is_lost = [] { return true; };
  const PartReport first = RunOne("train", options);
  EXPECT_EQ(GoesOnFrom(first), 1);
  EXPECT_EQ(first.tables().front().rows.size(), 2u) << "no case is tried after it";
  options.make_machine = OnTheCpu().make_machine;
  options.is_lost = [] { return false; };
  options.from = 1;
  const PartReport second = RunOne("train", options);
  EXPECT_EQ(GoesOnFrom(second), 0);
  ASSERT_EQ(second.tables().size(), 1u);
  EXPECT_EQ(second.tables().front().rows.size(), 1 + options.sizes.train.size());
  EXPECT_EQ(second.values().at("cases").size(), options.sizes.train.size());
  EXPECT_EQ(second.state(), PartState::kFailed);
  EXPECT_THAT(second.why(), HasSubstr("an illegal access"));
}

TEST(Parts, KernelsGoOnAfterACaseThatLostTheDevice) {
  PartOptions options = OnTheCpu();
  options.output = NewFolder();
  const PartReport whole = RunOne("kernels", options);
  ASSERT_EQ(whole.state(), PartState::kDone) << whole.why();
  options.from = 1;
  const PartReport again = RunOne("kernels", options);
  EXPECT_EQ(again.state(), PartState::kDone) << again.why();
  EXPECT_GT(again.tables().front().rows.size(), whole.tables().front().rows.size());
  EXPECT_GT(again.values().at("ratios").size(), whole.values().at("ratios").size());
}

TEST(Parts, OpsAreThoseOfTheCpu) {
  const PartReport report = RunOne("ops", OnTheCpu());
  EXPECT_EQ(report.state(), PartState::kDone) << report.why();
  EXPECT_GT(report.tables().front().rows.size(), 30u);
}

TEST(Parts, OpsThatAreWrongAreNamed) {
  PartReport report("", "ops");
  report.AddTable("", "", {"operator", "checks", "worst", "error", "bound", ""});
  const std::vector<worker::OpCheck> checks = {{"Add bf16 3x4", 1e-3, 1e-2, ""},
                                               {"Add bf16 5x6", 2e-2, 1e-2, ""},
                                               {"Add bf16 7x8", 1e-4, 1e-2, "two runs differ"},
                                               {"Add fp32 3x4", 1e-7, 1e-6, ""},
                                               {"Add fp32 5x6", 5e-7, 1e-6, ""}};
  AddOpRows(checks, report);
  EXPECT_EQ(AddOpsEnd(checks, "no time was left", report), 2);
  ASSERT_EQ(report.tables().size(), 2u);
  EXPECT_THAT(report.tables()[0].rows[1],
              ElementsAre("Add bf16", "3", "Add bf16 5x6", "2.0e-02", "1.0e-02", "**wrong**"));
  EXPECT_THAT(report.tables()[0].rows[2],
              ElementsAre("Add fp32", "2", "Add fp32 5x6", "5.0e-07", "1.0e-06", "right"));
  EXPECT_THAT(report.tables()[1].rows[2],
              ElementsAre("Add bf16 7x8", "1.0e-04", "1.0e-02", "two runs differ"));
  EXPECT_FALSE(report.bars().front().met);
}

TEST(Parts, OpsThatTheTimeDidNotSufficeForAreNoBarMet) {
  PartOptions options = OnTheCpu();
  options.budget = absl::ZeroDuration();
  const PartReport report = RunOne("ops", options);
  EXPECT_EQ(report.state(), PartState::kDone) << report.why();
  EXPECT_FALSE(report.bars().front().measured);
  EXPECT_THAT(report.bars().front().found, HasSubstr("no time was left"));
}

// A kernel that is off by a bit.
class Inexact final : public FlatKernels {
 public:
  absl::Status AdamW(worker::Stream& stream, const server::AdamWScalars& scalars,
                     const AdamWArrays& arrays) const override {
    server::AdamWScalars other = scalars;
    other.step_size = std::nextafter(other.step_size, 1.0F);
    return CpuFlatKernels().AdamW(stream, other, arrays);
  }
  absl::Status Add(worker::Stream& stream, const void* gradient, DType type, float* accumulator,
                   int64_t count) const override {
    return CpuFlatKernels().Add(stream, gradient, type, accumulator, count - 1);
  }
  int64_t RefusedCounts(int64_t) const override { return 3; }
  absl::Status AddExact(worker::Stream& stream, const void* gradient, DType type,
                        int64_t* accumulator, int64_t* refused, int64_t count) const override {
    refused[2] = 1;
    return CpuFlatKernels().AddExact(stream, gradient, type, accumulator, refused, count);
  }
  absl::Status ExactToFloat(worker::Stream& stream, const int64_t* accumulator, float* value,
                            int64_t count) const override {
    return CpuFlatKernels().ExactToFloat(stream, accumulator, value, count);
  }
  absl::Status Statistics(worker::Stream&, const float*, server::GradientStatistics*,
                          int64_t) const override {
    return Internal("it does not start");
  }
};

TEST(FlatChecks, SeeABit) {
  worker::Machine machine = worker::MakeCpuMachine(1);
  const auto right =
      CheckFlatKernels(*machine.device, machine.ops->stream(), CpuFlatKernels(), 3, 9001);
  EXPECT_EQ(right.size(), 7u);
  for (const worker::OpCheck& check : right) {
    EXPECT_TRUE(check.passed()) << check.name << ": " << check.wrong;
  }
  for (const worker::OpCheck& check :
       CheckFlatKernels(*machine.device, machine.ops->stream(), Inexact(), 3, 9001)) {
    EXPECT_FALSE(check.passed()) << check.name;
  }
}

TEST(Parts, GoldenIsSkippedWithoutData) {
  const PartReport report = RunOne("golden", OnTheCpu());
  EXPECT_EQ(report.state(), PartState::kSkipped);
  EXPECT_THAT(report.why(), HasSubstr("--data"));
}

TEST(Parts, GoldenStepsAreRightOnTheCpu) {
  PartOptions options = OnTheCpu();
  options.data = TestData();
  if (options.data.empty()) {
    GTEST_SKIP() << "SHOAL_TEST_DATA is not set";
  }
  const PartReport report = RunOne("golden", options);
  EXPECT_EQ(report.state(), PartState::kDone) << report.why();
  EXPECT_EQ(report.tables().front().rows.size(), 5u);  // heading, three in fp32, one in bf16
}

TEST(Parts, GoldenStepsThatDifferFail) {
  PartOptions options = OnTheCpu();
  if (TestData().empty()) {
    GTEST_SKIP() << "SHOAL_TEST_DATA is not set";
  }
  options.data = NewFolder();
  fs::create_directories(options.data + "/golden");
  fs::create_directory_symlink(TestData() + "/stories260k", options.data + "/stories260k");
  const std::string file = "/golden/stories260k_steps.json";
  json golden = json::parse(*ReadFile(TestData() + file));
  golden["steps"][1]["grad_norm"] = golden["steps"][1]["grad_norm"].get<double>() * 1.001;
  ASSERT_TRUE(WriteFileAtomically(options.data + file, golden.dump()).ok());
  const PartReport report = RunOne("golden", options);
  EXPECT_EQ(report.state(), PartState::kFailed);
  const auto& rows = report.tables().front().rows;
  EXPECT_EQ(rows[1].back(), "right");
  EXPECT_EQ(rows[2].back(), "**wrong**");
}

class GpuReport : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = NewFolder();
    for (const Part& part : Parts()) {
      if (part.name == "kernels") {
        continue;  // as if it had crashed before it began
      }
      PartReport report(folder_, std::string(part.name));
      report.AddTable(fmt::format("Table of {}", part.name), "", {"a"});
      report.AddRow({"1"});
      if (part.name == "train") {
        report.SetValue("cases", {{{"case", "124m, 4096 tokens"}, {"tokens_per_second", 30}},
                                  {{"case", "7b, 4096 tokens"}, {"tokens_per_second", 9}},
                                  {{"case", "7b, 16384 tokens"}, {"left_out", "does not fit"}}});
        report.AddBar(BarOf(kTrainFloors[0]).Found("1", false));
        report.AddBar({"something else", "any", "1", true});
      }
      if (part.name != "machine") {  // as if it had been killed
        report.Finish(PartState::kDone, "", 1);
      }
    }
  }
  ~GpuReport() override { fs::remove_all(folder_); }

  void WriteTorch(const json& torch) {
    ASSERT_TRUE(WriteFileAtomically(folder_ + "/torch.json", torch.dump()).ok());
  }
  std::string Written() {
    findings_ = LoadFindings(folder_, PartSizes());
    const auto written = WriteGpuReport(findings_, folder_ + "/out", {"A note."});
    EXPECT_TRUE(written.ok()) << written.status().message();
    EXPECT_EQ(written->failed_parts, 2);
    missed_ = written->missed_bars;
    return *ReadFile(written->path);
  }

  GpuFindings findings_;
  std::string folder_;
  int missed_ = 0;
};

TEST_F(GpuReport, SaysWhichPartsFailedAndWhatTheOthersFound) {
  const std::string text = Written();
  EXPECT_THAT(text, HasSubstr("A note."));
  EXPECT_THAT(text, HasSubstr("| machine | FAILED | 0 | was ended before it was done |"));
  EXPECT_THAT(text, HasSubstr("| kernels | FAILED | 0 |"));
  EXPECT_THAT(text, HasSubstr("| train | done | 1 |"));
  EXPECT_THAT(text, HasSubstr("## Table of machine"));
  EXPECT_THAT(text, HasSubstr("Not measured: it was not run."));
}

TEST_F(GpuReport, HasEveryBar) {
  const std::string text = Written();
  EXPECT_THAT(text,
              HasSubstr("| 124m, 16 x 1024 tokens | at least 460000 tokens/s | 1 | **missed** |"));
  EXPECT_THAT(text,
              HasSubstr("| 7b, 4096 tokens | utilisation at least 0.50 | the part left it out: "
                        "see its table | **not measured** |"));
  EXPECT_THAT(text, HasSubstr("| memory-bound kernels, the slowest | at least 0.8 of the copy "
                              "bandwidth | kernels FAILED: "));
  EXPECT_THAT(text, HasSubstr("| something else | any | 1 | met |"));
  EXPECT_THAT(text, HasSubstr("| 7b, 16384 tokens, beside PyTorch | at least 1.1 of its tokens/s | "
                              "Shoal: does not fit | **not measured** |"));
  EXPECT_EQ(findings_.bars.size(), WantedBars(PartSizes()).size() + PartSizes().train.size() + 1);
}

TEST_F(GpuReport, HoldsTheSameCasesAgainstPyTorch) {
  WriteTorch({{"torch", "2.11"},
              {"device", "a GPU"},
              {"attention", "SDPA, flash"},
              {"compiled", true},
              {"cases",
               {{{"case", "124m, 4096 tokens"},
                 {"tokens_per_second", 15.0},
                 {"tokens_per_second_without_optimizer", 20.0}},
                {{"case", "7b, 4096 tokens"},
                 {"tokens_per_second", 10.0},
                 {"tokens_per_second_without_optimizer", 12.0}},
                {{"case", "1.3b, 4096 tokens"}, {"error", "OutOfMemoryError"}}}}});
  const std::string text = Written();
  EXPECT_THAT(text, HasSubstr("| 124m, 4096 tokens | 30 | 15 | 2.00 | - | 20 | - | - |  |"));
  EXPECT_THAT(text,
              HasSubstr("| 1.3b, 4096 tokens | - | - | - | - | - | - | - | OutOfMemoryError |"));
  EXPECT_EQ(missed_, 2);
  const std::string table = ShortTable(findings_);
  EXPECT_THAT(table, HasSubstr("met          124m, 4096 tokens, beside PyTorch: 2.00"));
  EXPECT_THAT(table, HasSubstr("MISSED       7b, 4096 tokens, beside PyTorch: 0.90"));
}

TEST_F(GpuReport, SaysWhyPyTorchWasSkippedOrEnded) {
  WriteTorch({{"skipped", "No module named 'torch'"}});
  EXPECT_THAT(Written(), HasSubstr("Not measured: No module named 'torch'."));
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/torch.json", "{").ok());
  EXPECT_THAT(Written(), HasSubstr("torch.json is no JSON object"));
  WriteTorch({{"torch", "2.11"}, {"cases", json::array()}});
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/torch-end.txt", "exit code 1: no\n").ok());
  EXPECT_THAT(Written(), HasSubstr("It did not come to its end: exit code 1: no."));
  EXPECT_THAT(ShortTable(findings_),
              HasSubstr("7b, 4096 tokens, beside PyTorch: PyTorch: exit code 1"));
}

TEST_F(GpuReport, ShowsTheGpusStates) {
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/gpu-states.csv", "part, MHz\ntrain, 1980\n").ok());
  EXPECT_THAT(Written(), HasSubstr("| part | MHz |\n|---|---|\n| train | 1980 |"));
}

TEST_F(GpuReport, OfOnePartMissesNoOtherAndHasANameOfItsOwn) {
  const auto written = WriteGpuReport(LoadFindings(folder_, PartSizes(), *ChosenParts("train")),
                                      folder_ + "/out", {});
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(written->failed_parts, 0);
  EXPECT_THAT(written->path, HasSubstr("-gpu-train.md"));
  EXPECT_EQ(written->bars_not_measured, 3);  // the other floors
  EXPECT_THAT(*ReadFile(written->path), Not(HasSubstr("Table of ops")));
}

TEST_F(GpuReport, TheJsonBesideItHasEverything) {
  Written();
  for (const auto& entry : fs::directory_iterator(folder_ + "/out")) {
    if (entry.path().extension() == ".json") {
      const json all = json::parse(*ReadFile(entry.path().string()));
      EXPECT_EQ(all["parts"].size(), Parts().size());
      EXPECT_TRUE(all.contains("torch"));
      return;
    }
  }
  FAIL() << "there is no JSON file";
}

}  // namespace
}  // namespace shoal::bench

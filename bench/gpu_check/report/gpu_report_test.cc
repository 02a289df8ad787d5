// The report, from results of the parts and of PyTorch.
#include "bench/gpu_check/report/gpu_report.h"

#include <filesystem>

#include "bench/gpu_check/report/bars.h"
#include "bench/gpu_check/testing/parts.h"
#include "core/base/file.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

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
    findings_ = LoadResults(folder_, PartSizes());
    const auto written = WriteGpuReport(findings_, folder_ + "/out", {"A note."});
    EXPECT_TRUE(written.ok()) << written.status().message();
    EXPECT_EQ(written->failed_parts, 2);
    missed_ = written->missed_bars;
    return *ReadFile(written->path);
  }

  GpuResults findings_;
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
  EXPECT_THAT(text,
              HasSubstr("| 7b, 16384 tokens, beside PyTorch in bf16 alone | at least 1.1 of its "
                        "tokens/s | Shoal: does not fit | **not measured** |"));
  EXPECT_EQ(findings_.bars.size(),
            WantedBars(PartSizes()).size() + 2 * PartSizes().train.size() + 1);
}

TEST_F(GpuReport, HoldsTheSameCasesAgainstPyTorch) {
  WriteTorch({{"torch", "2.11"},
              {"device", "a GPU"},
              {"attention", "SDPA, flash"},
              {"compiled", true},
              {"cases",
               {{{"case", "124m, 4096 tokens"},
                 {"tokens_per_second", 15.0},
                 {"tokens_per_second_without_optimizer", 20.0},
                 {"peak_bytes", 3 << 29},
                 {"fp32_masters", {{"tokens_per_second", 12.0}, {"peak_bytes", int64_t{1} << 31}}}},
                {{"case", "7b, 4096 tokens"},
                 {"tokens_per_second", 10.0},
                 {"tokens_per_second_without_optimizer", 12.0},
                 {"note", "not compiled"},
                 {"fp32_masters", {{"error", "OutOfMemoryError"}}}},
                {{"case", "1.3b, 4096 tokens"}, {"error", "OutOfMemoryError"}}}}});
  const std::string text = Written();
  EXPECT_THAT(text, HasSubstr("| 124m, 4096 tokens | 30 | 15 | 2.00 | 12 | 2.50 | - | 20 | - | "
                              "1.5 GiB, 2.0 GiB |  |"));
  EXPECT_THAT(text, HasSubstr("| 7b, 4096 tokens | 9 | 10 | 0.90 | - | - | - | 12 | - | -, - | "
                              "not compiled; with fp32 masters: OutOfMemoryError |"));
  EXPECT_THAT(text, HasSubstr("| 1.3b, 4096 tokens | - | - | - | - | - | - | - | - | -, - | "
                              "OutOfMemoryError |"));
  EXPECT_EQ(missed_, 2);
  const std::string table = ShortTable(findings_);
  EXPECT_THAT(table,
              HasSubstr("met          124m, 4096 tokens, beside PyTorch in bf16 alone: 2.00"));
  EXPECT_THAT(table,
              HasSubstr("met          124m, 4096 tokens, beside PyTorch with fp32 masters: 2.50"));
  EXPECT_THAT(table, HasSubstr("MISSED       7b, 4096 tokens, beside PyTorch in bf16 alone: 0.90"));
  EXPECT_THAT(table, HasSubstr("NOT MEASURED 7b, 4096 tokens, beside PyTorch with fp32 masters: "
                               "PyTorch: OutOfMemoryError"));
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
              HasSubstr("7b, 4096 tokens, beside PyTorch in bf16 alone: PyTorch: exit code 1"));
}

TEST_F(GpuReport, ShowsTheGpusStates) {
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/gpu-states.csv", "part, MHz\ntrain, 1980\n").ok());
  EXPECT_THAT(Written(), HasSubstr("| part | MHz |\n|---|---|\n| train | 1980 |"));
}

TEST_F(GpuReport, OfOnePartMissesNoOtherAndHasANameOfItsOwn) {
  const auto written = WriteGpuReport(LoadResults(folder_, PartSizes(), *ChosenParts("train")),
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

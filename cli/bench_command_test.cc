#include "cli/bench_command.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "cli/testing/command_line.h"
#include "core/base/file.h"
#include "core/base/process/subprocess.h"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;

// Small and short: checks what is measured, not how fast it is.
Outcome Transport(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"bench", "transport", "--runs", "1", "--memory", "1MiB"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return Shoal(arguments);
}

TEST(BenchCommand, TransportMeasuresWhatWasAskedFor) {
  const Outcome json =
      Transport({"--transports", "shm", "--sizes", "4KiB,64KiB", "--clients", "1", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  std::set<std::pair<std::string, int64_t>> measured;
  for (const nlohmann::json& line : JsonLines(json.out)) {
    EXPECT_EQ(line["transport"], "shm");
    EXPECT_EQ(line["clients"], 1);
    EXPECT_EQ(line["limit"], "memcpy");
    EXPECT_GT(line["bytes_per_second"], 0);
    EXPECT_NEAR(
        line["ratio"].get<double>(),
        line["bytes_per_second"].get<double>() / line["limit_bytes_per_second"].get<double>(),
        1e-9);
    measured.emplace(line["operation"], line["bytes"]);
  }
  const std::set<std::pair<std::string, int64_t>> wanted = {
      {"get", 4096}, {"get", 65536}, {"push", 4096}, {"push", 65536}};
  EXPECT_EQ(measured, wanted);
}

TEST(BenchCommand, TransportDrawsWhatItMeasured) {
  if (!ProgramExists("gnuplot")) {
    GTEST_SKIP() << "gnuplot is not there (apt-get install gnuplot-nox)";
  }
  const std::string path = testing::TempDir() + "/bench_command_test.svg";
  const Outcome outcome =
      Transport({"--transports", "shm", "--sizes", "4KiB,64KiB", "--clients", "1", "--svg", path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto svg = ReadFile(path);
  ASSERT_TRUE(svg.ok()) << svg.status();
  EXPECT_THAT(*svg, HasSubstr("push: bandwidth"));
  EXPECT_THAT(*svg, HasSubstr(">memcpy, the limit of shm<"));
}

TEST(BenchCommand, WithoutGnuplotFiguresAreToldAndThePackageNamed) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  const Outcome outcome =
      Transport({"--transports", "shm", "--sizes", "4KiB", "--clients", "1", "--svg", "x.svg"});
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("gnuplot-nox"));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
  EXPECT_THAT(outcome.out, HasSubstr("4.0 KiB"));
}

TEST(BenchCommand, FiguresAreToldThoughThePictureCannotBeWritten) {
  if (!ProgramExists("gnuplot")) {
    GTEST_SKIP() << "gnuplot is not there (apt-get install gnuplot-nox)";
  }
  const Outcome outcome = Transport(
      {"--transports", "shm", "--sizes", "4KiB", "--clients", "1", "--svg", "/nowhere/at/all.svg"});
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("/nowhere/at/all.svg"));
  EXPECT_THAT(outcome.out, HasSubstr("4.0 KiB"));
}

TEST(BenchCommand, StoreMeasuresEachKernelAgainstTheTriad) {
  const std::vector<std::string> store = {"bench",      "store", "--runs",    "1",
                                          "--elements", "16384", "--threads", "1"};
  std::vector<std::string> with_json = store;
  with_json.emplace_back("--json");
  const Outcome json = Shoal(with_json);
  const Outcome text = Shoal(store);
  ASSERT_EQ(json.code, 0) << json.err;
  ASSERT_EQ(text.code, 0) << text.err;
  std::set<std::string> kernels;
  for (const nlohmann::json& line : JsonLines(json.out)) {
    EXPECT_EQ(line["elements"], 16384);
    EXPECT_EQ(line["threads"], 1);
    EXPECT_GT(line["triad_bytes_per_second"], 0);
    EXPECT_THAT(text.out, HasSubstr(line["kernel"].get<std::string>()));
    kernels.insert(line["kernel"]);
  }
  EXPECT_TRUE(kernels.contains("accumulate fp32"));
  EXPECT_TRUE(kernels.contains("adamw bf16 wire"));
}

TEST(BenchCommand, BadInputIsRefusedInOneLine) {
  ExpectRefused(Shoal({"bench"}), "shoal bench --help");
  ExpectRefused(Transport({"--transports", "pigeon", "--sizes", "4KiB"}), "pigeon");
  ExpectRefused(Transport({"--sizes", "3parsecs"}), "3parsecs");
  ExpectRefused(Transport({"--sizes", "0"}), "0 B");
  ExpectRefused(Transport({"--clients", "0", "--sizes", "4KiB"}), "0 clients");
  ExpectRefused(Transport({"--sizes", "16MiB"}), "do not fit into 1.0 MiB");
  ExpectRefused(Transport({"--runs", "0"}), "--runs");
  ExpectRefused(Shoal({"bench", "store", "--elements", "100"}), "16384 elements");
}

}  // namespace
}  // namespace shoal::cli

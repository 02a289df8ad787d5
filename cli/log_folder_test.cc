#include "cli/log_folder.h"

#include <filesystem>
#include <fstream>

#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using ::testing::ElementsAre;

void Append(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::app) << text;
}

std::vector<std::string> Read(LogFolder& folder) {
  std::vector<std::string> lines;
  const auto read = folder.Read();
  EXPECT_TRUE(read.ok()) << read.status();
  for (const LoggedLine& line : read.value_or(std::vector<LoggedLine>())) {
    lines.push_back(line.process + "|" + line.level + "|" + line.message);
  }
  return lines;
}

TEST(ParseLogLine, TakesWhatProgramsWriteApart) {
  const LoggedLine line =
      ParseLogLine("2026-11-25 20:26:01.123 info  server-0: listening on 127.0.0.1:0", "file");
  EXPECT_EQ(line.time, "2026-11-25 20:26:01.123");
  EXPECT_EQ(line.level, "info");
  EXPECT_EQ(line.process, "server-0");
  EXPECT_EQ(line.message, "listening on 127.0.0.1:0");
  for (const char* other : {"", "terminate called", "2026-11-25 20:26:01.123",
                            "2026-11-25 20:26:01.123 info ", "2026-11-25 20:26:01.123 info x"}) {
    EXPECT_EQ(ParseLogLine(other, "worker-1").message, other);
    EXPECT_EQ(ParseLogLine(other, "worker-1").process, "worker-1");
  }
}

TEST(LogFolder, ReadsAllInOrderOfTimeAndThenWhatIsNew) {
  const TemporaryFolder path;
  LogFolder folder(path.path());
  EXPECT_TRUE(absl::IsNotFound(folder.Read().status()));
  Append(path / "server-0.log",
         "2026-11-25 20:26:01.100 info  server-0: one\n"
         "no line of ours\n"
         "2026-11-25 20:26:03.000 error server-0: three\n");
  Append(path / "worker-0.log",
         "2026-11-25 20:26:02.000 info  worker-0: two\n2026-11-25 20:26:04.000 in");
  Append(path / "coordinator.port", "1234\n");
  EXPECT_THAT(Read(folder), ElementsAre("server-0|info|one", "server-0||no line of ours",
                                        "worker-0|info|two", "server-0|error|three"));
  EXPECT_THAT(Read(folder), ElementsAre());
  Append(path / "worker-0.log", "fo  worker-0: four\n");
  EXPECT_THAT(Read(folder), ElementsAre("worker-0|info|four"));
  for (const char* log : {"server-0.log", "worker-0.log"}) {
    std::filesystem::remove(path / log);
  }
  EXPECT_THAT(Read(folder), ElementsAre()) << "the run is done";
}

}  // namespace
}  // namespace shoal::cli

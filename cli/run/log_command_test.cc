#include "cli/run/log_command.h"

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

TEST(LogCommand, IsToldWhereTheRecordIs) {
  const TemporaryFolder folder;
  auto command = LogCommand::Start("echo $SHOAL_RECORD", "/run", folder / "logs");
  ASSERT_OK(command.status());
  ASSERT_OK((*command)->Finish());
  EXPECT_EQ(*ReadFile(folder / "logs/log-command.log"), "/run/record/metrics.jsonl\n");
}

TEST(LogCommand, AFailureNamesItsOutput) {
  const TemporaryFolder folder;
  auto command = LogCommand::Start("exit 3", "/run", folder.path());
  ASSERT_OK(command.status());
  EXPECT_THAT(std::string(Message((*command)->Finish())),
              ::testing::AllOf(::testing::HasSubstr("exited with status 3"),
                               ::testing::HasSubstr(folder / "log-command.log")));
}

}  // namespace
}  // namespace shoal::cli

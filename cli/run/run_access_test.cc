#include "cli/run/run_access.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "core/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class RunAccessTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(directory_);
    ASSERT_TRUE(CreateDirectories(logs()).ok());
  }
  void TearDown() override { fs::remove_all(directory_); }
  std::string logs() const { return LogFolderOf(directory_); }
  std::string token_file() const { return TokenFileIn(logs()); }
  static mode_t ModeOf(const std::string& path) {
    struct stat info {};
    return lstat(path.c_str(), &info) == 0 ? info.st_mode : 0;
  }
  const std::string directory_ = testing::TempDir() + "/run_access_" + std::to_string(getpid());
  const rpc::Token token_ = rpc::Token::Generate();
};

TEST_F(RunAccessTest, ARunIsFoundWhileItLasts) {
  auto access = RunAccess::Publish(logs(), "127.0.0.1:4321", token_);
  ASSERT_TRUE(access.ok()) << access.status();
  EXPECT_EQ(*FindRun(directory_), "127.0.0.1:4321");
  EXPECT_TRUE(rpc::LoadToken(token_file())->Matches(token_.secret()));
  access->reset();
  EXPECT_TRUE(fs::is_empty(logs()));
  const absl::Status none = FindRun(directory_).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.message()), HasSubstr(directory_));
  EXPECT_THAT(std::string(none.message()), HasSubstr("--coordinator"));
}

TEST_F(RunAccessTest, TheTokenIsForItsOwnerAlone) {
  const mode_t before = umask(0);
  const auto access = RunAccess::Publish(logs(), "127.0.0.1:1", token_);
  umask(before);
  ASSERT_TRUE(access.ok()) << access.status();
  EXPECT_EQ(ModeOf(token_file()), S_IFREG | 0600);
  EXPECT_EQ(ReadFile(AddressFileIn(logs()))->find(token_.secret()), std::string::npos);
}

// Files left by a killed run, or planted to read the token.
TEST_F(RunAccessTest, WhatLiesThereIsReplacedNotWrittenThrough) {
  const std::string elsewhere = directory_ + "/elsewhere";
  ASSERT_TRUE(WriteFileAtomically(AddressFileIn(logs()), "127.0.0.1:1\n").ok());
  ASSERT_TRUE(WriteFileAtomically(token_file(), "old\n").ok());
  ASSERT_EQ(chmod(token_file().c_str(), 0644), 0);
  fs::create_hard_link(token_file(), elsewhere);
  {
    const auto access = RunAccess::Publish(logs(), "127.0.0.1:2", token_);
    ASSERT_TRUE(access.ok()) << access.status();
    EXPECT_EQ(*FindRun(directory_), "127.0.0.1:2");
    EXPECT_EQ(ModeOf(token_file()), S_IFREG | 0600);
    EXPECT_EQ(*ReadFile(elsewhere), "old\n");
  }
  fs::create_symlink(elsewhere, token_file());
  const auto access = RunAccess::Publish(logs(), "127.0.0.1:3", token_);
  ASSERT_TRUE(access.ok()) << access.status();
  EXPECT_EQ(ModeOf(token_file()), S_IFREG | 0600);
  EXPECT_EQ(*ReadFile(elsewhere), "old\n");
}

TEST_F(RunAccessTest, AnEmptyAddressIsNamed) {
  ASSERT_TRUE(WriteFileAtomically(AddressFileIn(logs()), "\n").ok());
  EXPECT_THAT(std::string(FindRun(directory_).status().message()),
              HasSubstr("coordinator.address"));
}

}  // namespace
}  // namespace shoal::cli

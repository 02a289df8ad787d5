#include "core/rpc/token.h"

#include <cstdlib>
#include <filesystem>

#include "core/base/file.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace shoal::rpc {
namespace {

TEST(TokenTest, MatchesOnlyItself) {
  const Token token = *Token::Create("secret-token");
  EXPECT_TRUE(token.Matches("secret-token"));
  EXPECT_FALSE(token.Matches(""));
  EXPECT_FALSE(token.Matches("secret-tokem"));
  EXPECT_FALSE(token.Matches("secret-token2"));
  EXPECT_FALSE(token.Matches("secret-tokensecret-token"));
  EXPECT_FALSE(token.Matches("secret-toke"));
  EXPECT_FALSE(Token().Matches(""));
  EXPECT_FALSE(Token().Matches("x"));
}

TEST(TokenTest, RefusesWhatMetadataCannotCarry) {
  EXPECT_FALSE(Token::Create("").ok());
  EXPECT_FALSE(Token::Create("two words").ok());
  EXPECT_FALSE(Token::Create("line\nbreak").ok());
  EXPECT_FALSE(Token::Create(std::string(5000, 'a')).ok());
  // The message of a refusal does not repeat the token.
  EXPECT_EQ(Message(Token::Create("hunter2 hunter2").status()).find("hunter2"),
            std::string_view::npos);
}

TEST(TokenTest, GeneratesDifferentOnes) {
  EXPECT_NE(Token::Generate().secret(), Token::Generate().secret());
  EXPECT_GE(Token::Generate().secret().size(), 32U);
}

TEST(TokenTest, LoadsFromFileThenEnvironment) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("token-" + Token::Generate().secret())).string();
  ASSERT_TRUE(WriteFileAtomically(path, "  from-file\n").ok());
  ASSERT_EQ(setenv(kTokenVariable, "from-environment", 1), 0);
  EXPECT_EQ(LoadToken(path)->secret(), "from-file");
  EXPECT_EQ(LoadToken("")->secret(), "from-environment");
  ASSERT_EQ(unsetenv(kTokenVariable), 0);
  EXPECT_EQ(LoadToken("").status().code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(path);
  EXPECT_EQ(LoadToken(path).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace shoal::rpc

#include "core/rpc/newest_term.h"

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::rpc {
namespace {

using ::testing::HasSubstr;

TEST(NewestTerm, RefusesLowerOnesByName) {
  NewestTerm term;
  EXPECT_TRUE(term.Admit(2, "Prepare").ok());
  EXPECT_TRUE(term.Admit(2, "Commit").ok());
  EXPECT_TRUE(term.Admit(5, "Commit").ok());
  for (int i = 0; i < 2; ++i) {
    const absl::Status refused = term.Admit(4, "Commit of step 7");
    EXPECT_TRUE(absl::IsAborted(refused));
    EXPECT_THAT(
        std::string(Message(refused)),
        HasSubstr("Commit of step 7 is of term 4 of the coordinator, and term 5 has begun"));
    EXPECT_TRUE(term.Admit(5, "Commit").ok());
  }
  term.Forget();
  EXPECT_TRUE(term.Admit(1, "Configure").ok()) << "another coordinator";
}

}  // namespace
}  // namespace shoal::rpc

#include "core/base/status.h"

#include "gtest/gtest.h"

namespace shoal {
namespace {

absl::StatusOr<int> Half(int x) {
  if (x % 2 != 0) {
    return InvalidArgument("{} is odd", x);
  }
  return x / 2;
}

absl::Status Quarter(int x, int* out) {
  SHOAL_ASSIGN_OR_RETURN(const int half, Half(x));
  SHOAL_ASSIGN_OR_RETURN(*out, Half(half));
  return absl::OkStatus();
}

TEST(Status, MacrosPassValuesAndErrors) {
  int out = 0;
  EXPECT_TRUE(Quarter(8, &out).ok());
  EXPECT_EQ(out, 2);
  EXPECT_EQ(Message(Quarter(6, &out)), "3 is odd");
  EXPECT_EQ(Message(Annotate(Quarter(6, &out), "job.yaml")), "job.yaml: 3 is odd");
}

TEST(Status, ErrnoKeepsItsMeaning) {
  EXPECT_EQ(ErrnoToStatus(ENOENT, "open x").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(ErrnoToStatus(ENOENT, "open x")), "open x: No such file or directory");
}

}  // namespace
}  // namespace shoal

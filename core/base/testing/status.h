// Matchers of statuses for tests.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal {

// For a Status or StatusOr.
MATCHER(IsOk, negation ? "is not OK" : "is OK") { return arg.ok(); }

// For a Status.
MATCHER_P(HasCode, code, "") { return arg.code() == code; }

// A failure shows the status.
#define ASSERT_OK(expression)                                          \
  do {                                                                 \
    const absl::Status shoal_tested = (expression);                    \
    ASSERT_TRUE(shoal_tested.ok()) << ::shoal::Describe(shoal_tested); \
  } while (false)

// Succeeds if the status is an error of one line that contains the text.
inline testing::AssertionResult Refuses(const absl::Status& status, const std::string& text) {
  const std::string message(Message(status));
  if (!status.ok() && message.find(text) != std::string::npos &&
      message.find('\n') == std::string::npos) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << Describe(status) << "\nexpected one line with: " << text;
}

#define EXPECT_REFUSED(status, text) EXPECT_TRUE(::shoal::Refuses(status, text))

}  // namespace shoal

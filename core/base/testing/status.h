// Matchers of statuses for tests.
#pragma once

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

}  // namespace shoal

// Matchers of statuses for tests.
#pragma once

#include "gmock/gmock.h"

namespace shoal {

// For a Status or StatusOr.
MATCHER(IsOk, negation ? "is not OK" : "is OK") { return arg.ok(); }

// For a Status.
MATCHER_P(HasCode, code, "") { return arg.code() == code; }

}  // namespace shoal

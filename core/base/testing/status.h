// What tests ask of a status.
#pragma once

#include "gmock/gmock.h"

namespace shoal {

// A status, or what may be one in place of a value.
MATCHER(IsOk, negation ? "is not OK" : "is OK") { return arg.ok(); }

// A status.
MATCHER_P(HasCode, code, "") { return arg.code() == code; }

}  // namespace shoal

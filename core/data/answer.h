// Checking a model's reply against a sample's answer, for `shoal eval`.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/data/jsonl.h"

namespace shoal::worker {

// What the reply to the sample's last turn is compared with: its "answer" field, else the last
// assistant's content if it ends in GSM8K's "#### N". Nullopt: nothing to check.
std::optional<std::string> ReferenceAnswer(const JsonlSample& sample);

// Exact match, white space at both ends aside. If the reference has GSM8K's "#### N", only what
// follows "####" on that line is compared, without commas and with a trailing ".0" or "." of no
// account ("#### 1,200" and "#### 1200." agree).
bool CheckAnswer(std::string_view reference, std::string_view reply);

}  // namespace shoal::worker

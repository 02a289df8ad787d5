// Compares a model's reply with a sample's answer, for `shoal eval`.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/data/jsonl.h"

namespace shoal::worker {

// Returns what to compare the reply to the sample's last turn with: its "answer" field, else the
// last assistant's content if it ends in GSM8K's "#### N". Nullopt: nothing to check.
std::optional<std::string> ReferenceAnswer(const JsonlSample& sample);

// Exact match, ignoring white space at both ends. If the reference has GSM8K's "#### N", only what
// follows "####" on that line is compared, ignoring commas and a trailing ".0" or "." ("#### 1,200"
// and "#### 1200." agree).
bool CheckAnswer(std::string_view reference, std::string_view reply);

}  // namespace shoal::worker

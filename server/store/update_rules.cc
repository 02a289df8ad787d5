#include "server/store/update_rules.h"

#include <algorithm>

#include "core/base/check.h"

namespace shoal::server {

UpdateRules::UpdateRules(double weight_decay, const std::vector<plan::ParameterGroup>& groups)
    : groups_(groups), rules_{{}, {.weight_decay = weight_decay}} {
  for (const plan::ParameterGroup& group : groups_) {
    for (const double usual : {0.0, weight_decay}) {
      rules_.push_back(group.freeze
                           ? UpdateRule{.learning_rate_scale = 0, .frozen = true}
                           : UpdateRule{.learning_rate_scale = group.learning_rate_scale,
                                        .weight_decay = group.weight_decay.value_or(usual)});
    }
  }
}

size_t UpdateRules::RuleOf(const plan::TensorSpec& tensor) const {
  const auto group = std::ranges::find_if(groups_, [&tensor](const plan::ParameterGroup& other) {
    return plan::Matches(other, tensor.name);
  });
  const auto index = group == groups_.end() ? 0 : group - groups_.begin() + 1;
  return 2 * static_cast<size_t>(index) + (tensor.decays() ? 1 : 0);
}

std::vector<UpdateRange> UpdateRules::Of(const plan::UnitSpec& unit,
                                         const plan::PartitionSpec& partition) const {
  SHOAL_CHECK(unit.index == partition.unit);
  std::vector<UpdateRange> ranges;
  for (size_t i = 0; i < unit.tensors.size(); ++i) {
    const int64_t next = i + 1 < unit.tensors.size() ? unit.tensors[i + 1].offset : unit.count;
    const int64_t begin = std::max(unit.tensors[i].offset - partition.offset, int64_t{0});
    const int64_t end = std::min(next - partition.offset, partition.count);
    if (begin >= end) {
      continue;
    }
    const size_t rule = RuleOf(unit.tensors[i]);
    if (!ranges.empty() && rules_[ranges.back().rule] == rules_[rule]) {
      ranges.back().end = end;
    } else {
      ranges.push_back({begin, end, rule});
    }
  }
  return ranges;
}

}  // namespace shoal::server

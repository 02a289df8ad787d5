// How a job's tensors are updated: matrices with weight decay and vectors without, unless a group
// of the job (train.groups) says otherwise of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/job/job.h"
#include "core/model/model_spec.h"
#include "core/model/partition.h"

namespace shoal::server {

struct UpdateRule {
  double learning_rate_scale = 1;
  double weight_decay = 0;
  bool frozen = false;  // the gradient counts as zero, and nothing changes

  bool operator==(const UpdateRule&) const = default;
};

// A range [begin, end) of elements within a partition that are updated alike.
struct UpdateRange {
  int64_t begin = 0;
  int64_t end = 0;
  size_t rule = 0;  // index

  bool operator==(const UpdateRange&) const = default;
};

class UpdateRules {
 public:
  UpdateRules(double weight_decay, const std::vector<plan::ParameterGroup>& groups);

  const std::vector<UpdateRule>& all() const { return rules_; }
  // The whole partition, in order; padding goes with the tensor before it.
  std::vector<UpdateRange> Of(const plan::UnitSpec& unit,
                              const plan::PartitionSpec& partition) const;

 private:
  size_t RuleOf(const plan::TensorSpec& tensor) const;

  const std::vector<plan::ParameterGroup> groups_;
  std::vector<UpdateRule> rules_;  // of vectors and of matrices: of no group, then by group
};

}  // namespace shoal::server

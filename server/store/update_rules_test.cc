// Which elements are updated how.
#include "server/store/update_rules.h"

#include <gtest/gtest.h>

#include "core/base/bytes.h"

namespace shoal::server {
namespace {

class UpdateRulesTest : public ::testing::Test {
 protected:
  // By unit and element, as the ranges of all partitions say; fails where they do not cover all.
  std::vector<std::vector<UpdateRule>> ByElement(const UpdateRules& rules) const {
    std::vector<std::vector<UpdateRule>> all(units_.size());
    for (const plan::PartitionSpec& partition : plan::BuildPartitions(units_, 16 * kKiB)) {
      auto& of_unit = all[static_cast<size_t>(partition.unit)];
      int64_t last = 0;
      for (const UpdateRange& range :
           rules.Of(units_[static_cast<size_t>(partition.unit)], partition)) {
        EXPECT_EQ(range.begin, last);
        EXPECT_GT(range.end, range.begin);
        last = range.end;
        of_unit.insert(of_unit.end(), static_cast<size_t>(range.end - range.begin),
                       rules.all()[range.rule]);
      }
      EXPECT_EQ(last, partition.count);
    }
    return all;
  }
  void ExpectRule(const UpdateRules& rules,
                  const std::function<UpdateRule(const plan::TensorSpec&)>& expected) const {
    const std::vector<std::vector<UpdateRule>> all = ByElement(rules);
    for (const plan::UnitSpec& unit : units_) {
      for (const plan::TensorSpec& tensor : unit.tensors) {
        for (const int64_t element : {tensor.offset, tensor.offset + tensor.count() - 1}) {
          EXPECT_EQ(all[static_cast<size_t>(unit.index)][static_cast<size_t>(element)],
                    expected(tensor))
              << tensor.name;
        }
      }
    }
  }

  const std::vector<plan::UnitSpec> units_ = plan::BuildUnits(*plan::NamedShape("tiny"));
};

TEST_F(UpdateRulesTest, MatricesAloneDecay) {
  ExpectRule(UpdateRules(0.25, {}), [](const plan::TensorSpec& tensor) {
    return UpdateRule{.weight_decay = tensor.decays() ? 0.25 : 0};
  });
}

TEST_F(UpdateRulesTest, TheFirstGroupThatFitsCounts) {
  const UpdateRules rules(0.25, {{.match = "*.layers.0.*", .freeze = true},
                                 {.match = "*embed_tokens*", .learning_rate_scale = 0.5},
                                 {.match = "*.layers.[01].*", .weight_decay = 0.75}});
  ExpectRule(rules, [](const plan::TensorSpec& tensor) -> UpdateRule {
    const auto has = [&tensor](const char* part) {
      return tensor.name.find(part) != std::string::npos;
    };
    if (has("layers.0.")) {
      return {.learning_rate_scale = 0, .frozen = true};
    }
    if (has("layers.1.")) {
      return {.weight_decay = 0.75};
    }
    return {.learning_rate_scale = has("embed_tokens") ? 0.5 : 1,
            .weight_decay = tensor.decays() ? 0.25 : 0};
  });
}

}  // namespace
}  // namespace shoal::server

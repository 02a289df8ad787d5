#include "tests/support/final_state.h"

#include "core/base/status.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint.h"

namespace shoal::testing {

std::vector<float> FinalState(const std::string& directory) {
  const auto newest = server::NewestCheckpoint(directory);
  if (!newest.ok() || !newest->has_value()) {
    ADD_FAILURE() << "no checkpoint in " << directory;
    return {};
  }
  const auto checkpoint = server::Checkpoint::Open((*newest)->path);
  if (!checkpoint.ok()) {
    ADD_FAILURE() << Describe(checkpoint.status());
    return {};
  }
  std::vector<float> state;
  for (const plan::UnitSpec& unit : plan::BuildUnits((*checkpoint)->manifest().spec)) {
    for (const auto section : {server::Section::kMaster, server::Section::kFirstMoment,
                               server::Section::kSecondMoment}) {
      const size_t begin = state.size();
      state.resize(begin + static_cast<size_t>(unit.count));
      EXPECT_TRUE(
          (*checkpoint)->Read(section, unit.index, 0, std::span(state).subspan(begin)).ok());
    }
  }
  return state;
}

}  // namespace shoal::testing

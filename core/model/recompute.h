// What forward keeps of a block's activations, and what the backward recomputes from it: trades
// memory for time. Results have the same bits either way.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace shoal::plan {

enum class Recompute : uint8_t {
  kNone,   // keeps everything that forward made
  kLight,  // drops and recomputes outputs of norms and of the activation function (SwiGLU)
  kFull,   // keeps only each block's input; runs the block's forward again
};

inline constexpr std::array<std::pair<std::string_view, Recompute>, 3> kRecomputeNames = {
    {{"none", Recompute::kNone}, {"light", Recompute::kLight}, {"full", Recompute::kFull}}};

constexpr std::string_view Name(Recompute recompute) {
  return kRecomputeNames[static_cast<size_t>(recompute)].first;
}

}  // namespace shoal::plan

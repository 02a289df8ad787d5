// What of a block's activations forward keeps, and what is made again in the backward from what was
// kept: memory against time. Results are the same bits either way.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace shoal::plan {

enum class Recompute : uint8_t {
  kNone,   // everything that forward made is kept
  kLight,  // outputs of norms and of the activation function (SwiGLU) are dropped and made again
  kFull,   // of each block only its input is kept; the block's forward runs again
};

inline constexpr std::array<std::pair<std::string_view, Recompute>, 3> kRecomputeNames = {
    {{"none", Recompute::kNone}, {"light", Recompute::kLight}, {"full", Recompute::kFull}}};

constexpr std::string_view Name(Recompute recompute) {
  return kRecomputeNames[static_cast<size_t>(recompute)].first;
}

}  // namespace shoal::plan

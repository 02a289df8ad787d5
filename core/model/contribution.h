// How a gradient is known within an attempt of a step, whoever sends it: by its unit and a key. A
// server adds each key once to a partition, so a pack that is run again, by another worker or after
// half of it was pushed, counts once. Keys are a function of the step's packs:
//
//   1 + pack * keys_per_pack + contribution   pushed for each pack
//   1 + packs * keys_per_pack + slot          the sum over what one worker was given, behind those
//
// A pack makes one contribution to a unit; two where the head and the embedding share a matrix and
// what they add to it is pushed apart, since two stages may make them (plan::KeysPerPack).
#pragma once

#include <cstdint>

namespace shoal::plan {

struct Contribution {
  int64_t key = 1;
  int64_t pack = 0;  // -1: several

  static Contribution OfPack(int64_t pack, int keys_per_pack, int which) {
    return {.key = 1 + pack * keys_per_pack + which, .pack = pack};
  }
  static Contribution OfWork(int64_t packs, int keys_per_pack, int64_t slot) {
    return {.key = 1 + packs * keys_per_pack + slot, .pack = -1};
  }
};

}  // namespace shoal::plan

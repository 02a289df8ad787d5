// How much state moves between two steps, which wait for it, where a wish has a rate: as much as
// makes a short pause. So a move of much is many waves, with steps between. Pure.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace shoal::plan {

inline constexpr double kWavePause = 0.1;  // seconds, that a wave is to take at most
// Of a wish, so that it ends within as many steps. Each leaves an extent at whoever gets some, over
// which a step goes one by one.
inline constexpr int64_t kMostWaves = 64;

// Of a wave, whatever its pace.
inline constexpr int64_t kMostWaveBytes = int64_t{1} << 40;

struct MovePace {
  int64_t bytes = int64_t{1} << 18;   // of a wave; at first what takes no server long
  int good = 0;                       // waves that were short enough, since it changed
  int64_t too_much = kMostWaveBytes;  // bytes of the last wave that took too long
  int since = 0;                      // waves since that one

  bool operator==(const MovePace&) const = default;
};

// Returns the pace after a wave of so many bytes that took so long: less where that was too long,
// twice as much where that would have been short enough, and more after some good ones. What was
// too much is not tried again for some waves, so that few of them are too long.
MovePace AfterWave(MovePace pace, int64_t bytes, double seconds);

// Returns the bytes of the next wave, where so many are left and so many waves were: more than the
// pace has where kMostWaves of those would not do.
int64_t NextWaveBytes(const MovePace& pace, int64_t left, int64_t waves);

// Returns how long after a wave of so many bytes began the next one may, so that no more than
// `rate` bytes a second move, which is positive.
absl::Duration BeforeNextWave(int64_t bytes, int64_t rate);

}  // namespace shoal::plan

#include "core/plan/placement/move_pace.h"

#include <algorithm>

namespace shoal::plan {
namespace {

constexpr int kGoodWaves = 4;
constexpr double kLeastSeconds = 0.001;  // of a wave: a shorter one is not told from it
constexpr int kWavesBeforeMore = 16;     // than what was too much

}  // namespace

MovePace AfterWave(MovePace pace, int64_t bytes, double seconds) {
  const double fits = static_cast<double>(bytes) * kWavePause / std::max(seconds, kLeastSeconds);
  const auto fit = static_cast<int64_t>(std::min(fits, static_cast<double>(kMostWaveBytes)));
  if (seconds > kWavePause) {
    return {.bytes = std::max<int64_t>(1, std::min(fit, bytes / 2)), .too_much = bytes};
  }
  if (++pace.since == kWavesBeforeMore) {
    pace.too_much = kMostWaveBytes;
  }
  int64_t more = pace.bytes;
  if (fit / 2 >= pace.bytes) {
    more *= 2;
    pace.good = 0;
  } else if (++pace.good == kGoodWaves) {
    more += pace.bytes / 4;
    pace.good = 0;
  }
  pace.bytes = std::max(pace.bytes, std::min(more, pace.too_much - 1));
  return pace;
}

int64_t NextWaveBytes(const MovePace& pace, int64_t left, int64_t waves) {
  const int64_t more = std::max<int64_t>(1, kMostWaves - waves);
  return std::max(pace.bytes, left / more + (left % more > 0 ? 1 : 0));
}

absl::Duration BeforeNextWave(int64_t bytes, int64_t rate) {
  return absl::Seconds(static_cast<double>(bytes) / static_cast<double>(rate));
}

}  // namespace shoal::plan

#include "core/base/kept_lines.h"

#include <utility>

#include "fmt/format.h"

namespace shoal {

void KeptLines::Add(KeptLine line) {
  if (line.message.size() > kMaxBytes) {
    line.message.resize(kMaxBytes);
  }
  absl::MutexLock lock(&mutex_);
  if (lines_.size() == kMaxLines) {
    lines_.pop_front();
    ++dropped_;
  }
  lines_.push_back(std::move(line));
}

std::vector<KeptLine> KeptLines::Take() {
  absl::MutexLock lock(&mutex_);
  std::vector<KeptLine> lines;
  if (dropped_ > 0) {
    lines.push_back({.time = lines_.front().time,
                     .level = "warning",
                     .message = fmt::format("{} lines before this found no room", dropped_)});
  }
  lines.insert(lines.end(), std::make_move_iterator(lines_.begin()),
               std::make_move_iterator(lines_.end()));
  lines_.clear();
  dropped_ = 0;
  return lines;
}

KeptLines& ProcessLines() {
  static auto& lines = *new KeptLines();
  return lines;
}

}  // namespace shoal

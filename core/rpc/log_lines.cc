#include "core/rpc/log_lines.h"

#include "core/base/clock.h"
#include "core/base/kept_lines.h"
#include "core/base/utf8.h"

namespace shoal::rpc {
namespace {

constexpr int kMaxLines = 512;

double Seconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

}  // namespace

void AddLogLines(proto::NewLines& lines) {
  for (KeptLine& kept : ProcessLines().Take()) {
    proto::LogLine& line = *lines.add_lines();
    line.set_time(Seconds(kept.time));
    line.set_level(std::move(kept.level));
    line.set_message(LossyUtf8(kept.message));  // it may quote anything, and be cut in a character
  }
  if (const int beyond = lines.lines_size() - kMaxLines; beyond > 0) {
    lines.mutable_lines()->DeleteSubrange(0, beyond);
  }
  lines.set_now(Seconds(RealClock().Now()));
}

}  // namespace shoal::rpc

#include "core/data/jinja/text.h"

#include <algorithm>
#include <utility>

namespace shoal::jinja {

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) {
  if (!bytes_.empty()) {
    runs_.push_back({bytes_.size(), origin});
  }
}

size_t Text::RunAt(size_t byte) const {
  const auto run = std::upper_bound(runs_.begin(), runs_.end(), byte,
                                    [](size_t at, const Run& entry) { return at < entry.end; });
  return static_cast<size_t>(run - runs_.begin());
}

Origin Text::OriginAt(size_t byte) const { return runs_[RunAt(byte)].origin; }

void Text::Append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) {
    return;
  }
  bytes_ += bytes;
  if (runs_.empty() || runs_.back().origin != origin) {
    runs_.push_back({bytes_.size(), origin});
  } else {
    runs_.back().end = bytes_.size();
  }
}

void Text::AppendPart(const Text& text, size_t begin, size_t end) {
  for (size_t run = text.RunAt(begin); begin < end; ++run) {
    const size_t stop = std::min(text.runs_[run].end, end);
    Append(std::string_view(text.bytes_).substr(begin, stop - begin), text.runs_[run].origin);
    begin = stop;
  }
}

Text Text::Part(size_t begin, size_t end) const {
  Text part;
  part.AppendPart(*this, begin, end);
  return part;
}

void Text::MarkGeneration() {
  std::vector<Run> marked;
  for (Run run : runs_) {
    run.origin.generation = true;
    if (!marked.empty() && marked.back().origin == run.origin) {
      marked.back().end = run.end;
    } else {
      marked.push_back(run);
    }
  }
  runs_ = std::move(marked);
}

}  // namespace shoal::jinja

#include "cli/generated_text.h"

#include <algorithm>
#include <utility>

namespace shoal::cli {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // what a half character decodes to

}  // namespace

TokenText::TokenText(const worker::Tokenizer& tokenizer, std::span<const int32_t> prompt)
    : tokenizer_(tokenizer),
      ids_(prompt.begin(), prompt.end()),
      printed_(tokenizer.Decode(ids_).size()) {}

std::string TokenText::Add(int32_t id) {
  ids_.push_back(id);
  const std::string text = tokenizer_.Decode(ids_);
  if (text.ends_with(kReplacement) || text.size() < printed_) {
    return "";
  }
  return Rest(text);
}

std::string TokenText::Finish() { return Rest(tokenizer_.Decode(ids_)); }

std::string TokenText::Rest(const std::string& text) {
  std::string piece = text.size() > printed_ ? text.substr(printed_) : "";
  printed_ = std::max(printed_, text.size());
  return piece;
}

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, "");
}

std::string StopStrings::Add(const std::string& piece) {
  if (stopped_) {
    return "";
  }
  held_ += piece;
  size_t end = std::string::npos;
  size_t keep = 0;  // at the end, what a stop may begin with
  for (const std::string& stop : stops_) {
    end = std::min(end, held_.find(stop));
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > keep; --size) {
      if (held_.ends_with(std::string_view(stop).substr(0, size))) {
        keep = size;
      }
    }
  }
  stopped_ = end != std::string::npos;
  const size_t certain = stopped_ ? end : held_.size() - keep;
  std::string text = held_.substr(0, certain);
  held_.erase(0, certain);
  return text;
}

std::string StopStrings::Finish() { return stopped_ ? "" : std::exchange(held_, ""); }

}  // namespace shoal::cli

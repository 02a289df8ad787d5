#include "core/data/answer.h"

namespace shoal::worker {
namespace {

constexpr std::string_view kMark = "####";
constexpr std::string_view kBlanks = " \t\r\n";

std::string_view TrimBlanks(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  return begin == std::string_view::npos
             ? std::string_view()
             : text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// What the last "####" marks, in one spelling; nullopt without a mark.
std::optional<std::string> Marked(std::string_view text) {
  const size_t mark = text.rfind(kMark);
  if (mark == std::string_view::npos) {
    return std::nullopt;
  }
  std::string_view rest = text.substr(mark + kMark.size());
  rest = TrimBlanks(rest.substr(0, rest.find('\n')));
  std::string value;
  for (const char c : rest) {
    if (c != ',' && c != '$') {
      value += c;
    }
  }
  if (value.ends_with(".0")) {
    value.resize(value.size() - 2);
  } else if (value.ends_with('.')) {
    value.pop_back();
  }
  return value;
}

}  // namespace

std::optional<std::string> ReferenceAnswer(const JsonlSample& sample) {
  if (sample.answer.has_value()) {
    return sample.answer;
  }
  if (!sample.messages.empty() && sample.messages.back().role == Role::kAssistant &&
      Marked(sample.messages.back().content).has_value()) {
    return sample.messages.back().content;
  }
  return std::nullopt;
}

bool CheckAnswer(std::string_view reference, std::string_view reply) {
  if (const std::optional<std::string> wanted = Marked(reference); wanted.has_value()) {
    return wanted == Marked(reply);
  }
  return TrimBlanks(reference) == TrimBlanks(reply);
}

}  // namespace shoal::worker

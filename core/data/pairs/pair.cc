#include "core/data/pairs/pair.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"

namespace shoal::worker {
namespace {

using Messages = std::vector<ChatMessage>;

// Bytes that both begin with, up to the beginning of a character; a space before what differs is
// the replies'.
size_t CommonText(const std::string& one, const std::string& other) {
  auto bytes = static_cast<size_t>(std::ranges::mismatch(one, other).in1 - one.begin());
  const auto inside = [](const std::string& text, size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  while (bytes > 0 && (inside(one, bytes) || inside(other, bytes))) {
    --bytes;
  }
  return bytes > 0 && one[bytes - 1] == ' ' ? bytes - 1 : bytes;
}

bool BeginsWithReply(const Messages& messages) {
  return !messages.empty() && messages.front().role == Role::kAssistant;
}

Messages AsPrompt(PairText text) {
  Messages messages;
  if (std::holds_alternative<Messages>(text)) {
    messages = std::get<Messages>(std::move(text));
  } else {
    messages.push_back({Role::kUser, std::get<std::string>(std::move(text))});
  }
  return messages;
}

Messages AsReply(PairText text) {
  if (std::holds_alternative<Messages>(text)) {
    return std::get<Messages>(std::move(text));
  }
  Messages messages;
  messages.push_back({Role::kAssistant, std::get<std::string>(std::move(text))});
  return messages;
}

// Moves what both begin with to the prompt.
absl::Status FindPrompt(PairSides& sides) {
  if (std::holds_alternative<std::string>(sides.chosen)) {
    auto& chosen = std::get<std::string>(sides.chosen);
    auto& rejected = std::get<std::string>(sides.rejected);
    const size_t bytes = CommonText(chosen, rejected);
    if (bytes == 0) {
      return InvalidArgument("chosen and rejected begin with nothing in common; give a prompt");
    }
    sides.prompt = chosen.substr(0, bytes);
    chosen.erase(0, bytes);
    rejected.erase(0, bytes);
    return absl::OkStatus();
  }
  auto& chosen = std::get<Messages>(sides.chosen);
  auto& rejected = std::get<Messages>(sides.rejected);
  const auto ends = std::ranges::mismatch(chosen, rejected);
  sides.prompt = Messages(chosen.begin(), ends.in1);
  chosen.erase(chosen.begin(), ends.in1);
  rejected.erase(rejected.begin(), ends.in2);
  return absl::OkStatus();
}

absl::StatusOr<Messages> Joined(Messages prompt, PairText reply, std::string_view side) {
  Messages after = AsReply(std::move(reply));
  if (std::ranges::find(after, Role::kAssistant, &ChatMessage::role) == after.end()) {
    return InvalidArgument("{} has no message of the assistant behind the prompt", side);
  }
  for (ChatMessage& message : prompt) {
    message.weight = 0;
  }
  prompt.insert(prompt.end(), std::make_move_iterator(after.begin()),
                std::make_move_iterator(after.end()));
  return prompt;
}

}  // namespace

absl::StatusOr<Pair> PairOf(PairSides sides) {
  if (sides.chosen.index() != sides.rejected.index()) {
    return InvalidArgument("chosen and rejected are not both texts, or both lists of messages");
  }
  if (sides.chosen == sides.rejected) {
    return InvalidArgument("chosen and rejected are equal");
  }
  const auto* const chosen = std::get_if<Messages>(&sides.chosen);
  const bool repeats = sides.prompt.has_value() && chosen != nullptr &&
                       std::holds_alternative<std::string>(*sides.prompt) &&
                       !BeginsWithReply(*chosen);
  if (!sides.prompt.has_value() || repeats) {
    SHOAL_RETURN_IF_ERROR(FindPrompt(sides));
  }
  const Messages prompt = AsPrompt(*std::move(sides.prompt));
  Pair pair;
  SHOAL_ASSIGN_OR_RETURN(pair.chosen, Joined(prompt, std::move(sides.chosen), "chosen"));
  SHOAL_ASSIGN_OR_RETURN(pair.rejected, Joined(prompt, std::move(sides.rejected), "rejected"));
  return pair;
}

}  // namespace shoal::worker

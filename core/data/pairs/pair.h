// Pairs of replies to one prompt, in the shapes that data has them: texts or lists of messages, the
// prompt beside them or at the beginning of both.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/chat/message.h"

namespace shoal::worker {

using PairText = std::variant<std::string, std::vector<ChatMessage>>;

struct PairSides {
  std::optional<PairText> prompt;
  PairText chosen;
  PairText rejected;
};

// Two conversations: messages of the prompt weigh 0, those that follow are learnt.
struct Pair {
  std::vector<ChatMessage> chosen;
  std::vector<ChatMessage> rejected;
};

// Without a prompt, it is what both begin with: equal messages, or the same text up to its last
// space. A prompt that is a text beside lists which do not begin with a reply is said in them, too.
// InvalidArgument if both are equal, are not of one shape, or one has no reply.
absl::StatusOr<Pair> PairOf(PairSides sides);

}  // namespace shoal::worker

#include "core/data/synthetic/synth.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "core/base/file.h"
#include "core/base/json/json.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "fmt/ranges.h"

namespace shoal::worker {
namespace {

constexpr int64_t kLargestNumber = 10;
constexpr int64_t kLargestOperand = 5;
constexpr std::array<std::string_view, 8> kNames = {"Ana", "Ben", "Cai", "Dan",
                                                    "Eva", "Fay", "Gus", "Ida"};
constexpr std::array<std::string_view, 6> kThings = {"cups", "pens", "hats",
                                                     "keys", "maps", "eggs"};

class Writer {
 public:
  explicit Writer(Random& random) : random_(random) {}

  int64_t tokens() const { return tokens_; }
  std::vector<ChatMessage> Take() { return std::move(messages_); }

  // A sum or difference, and then up to three tasks that continue from its result.
  void Arithmetic(int64_t limit) {
    int64_t total = random_.Between(0, kLargestNumber);
    const int64_t turns = random_.Between(1, 4);
    for (int64_t turn = 0; turn < turns && (turn == 0 || tokens_ < limit); ++turn) {
      const bool adds = total == 0 || (total < kLargestNumber && random_.Below(2) == 0);
      const int64_t room = adds ? kLargestNumber - total : total;
      const int64_t operand = random_.Between(1, std::min(room, kLargestOperand));
      const char sign = adds ? '+' : '-';
      const int64_t result = adds ? total + operand : total - operand;
      const std::string question = turn == 0
                                       ? fmt::format("What is {} {} {}?", total, sign, operand)
                                       : fmt::format("Now {} {}.", adds ? "add" : "take", operand);
      Turn(question, fmt::format("{} {} {} = {}", total, sign, operand, result));
      total = result;
    }
  }

  void Sort() {
    std::vector<int> digits = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    random_.Shuffle(digits);
    digits.resize(static_cast<size_t>(random_.Between(3, 4)));
    std::vector<int> sorted = digits;
    std::sort(sorted.begin(), sorted.end());
    Turn(fmt::format("Sort {}.", fmt::join(digits, " ")),
         fmt::format("{}", fmt::join(sorted, " ")));
  }

  // A few facts, and questions about them.
  void Extract(int64_t limit) {
    std::vector<std::string_view> names(kNames.begin(), kNames.end());
    std::vector<std::string_view> things(kThings.begin(), kThings.end());
    random_.Shuffle(names);
    random_.Shuffle(things);
    const auto facts = static_cast<size_t>(random_.Between(2, 3));
    std::vector<int64_t> counts;
    std::string question;
    for (size_t i = 0; i < facts; ++i) {
      counts.push_back(random_.Between(2, 9));
      question += fmt::format("{} has {} {}. ", names[i], counts[i], things[i]);
    }
    const int64_t turns = random_.Between(1, 3);
    for (int64_t turn = 0; turn < turns && (turn == 0 || tokens_ < limit); ++turn) {
      const auto i = static_cast<size_t>(random_.Below(facts));
      if (random_.Below(2) == 0) {
        Turn(question + fmt::format("Who has {}?", things[i]), std::string(names[i]));
      } else {
        Turn(question + fmt::format("How many {}?", things[i]),
             fmt::format("{} {}", counts[i], things[i]));
      }
      question.clear();
    }
  }

 private:
  void Turn(std::string question, std::string answer) {
    for (ChatMessage& message :
         std::array<ChatMessage, 2>{ChatMessage{Role::kUser, std::move(question)},
                                    ChatMessage{Role::kAssistant, std::move(answer)}}) {
      tokens_ += EstimateTokens(message);
      messages_.push_back(std::move(message));
    }
  }

  Random& random_;
  std::vector<ChatMessage> messages_;
  int64_t tokens_ = 0;
};

}  // namespace

absl::StatusOr<SynthKind> ParseSynthKind(std::string_view name) {
  constexpr std::pair<std::string_view, SynthKind> kKinds[] = {
      {"arithmetic", SynthKind::kArithmetic},
      {"sort", SynthKind::kSort},
      {"extract", SynthKind::kExtract},
      {"mixed", SynthKind::kMixed}};
  for (const auto& [known, kind] : kKinds) {
    if (known == name) {
      return kind;
    }
  }
  return InvalidArgument("unknown kind '{}'; known are arithmetic, sort, extract and mixed", name);
}

int64_t EstimateTokens(const ChatMessage& message) {
  int64_t tokens =
      message.role == Role::kAssistant ? 4 : 3;  // the role, its marks, the end of an answer
  bool in_word = false;
  for (const char c : message.content) {
    const bool letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    tokens += letter ? (in_word ? 0 : 1)
                     : (c == ' ' ? 0 : 1);  // words and marks include the space before them
    in_word = letter;
  }
  return tokens;
}

SynthSample MakeSynthSample(const SynthOptions& options, int64_t index) {
  Random random(options.seed, static_cast<uint64_t>(index));
  const int64_t length = plan::DrawLength(options.lengths, random);
  Writer writer(random);
  do {
    const SynthKind kind =
        options.kind == SynthKind::kMixed ? static_cast<SynthKind>(random.Below(3)) : options.kind;
    if (kind == SynthKind::kArithmetic) {
      writer.Arithmetic(length);
    } else if (kind == SynthKind::kSort) {
      writer.Sort();
    } else {
      writer.Extract(length);
    }
  } while (writer.tokens() < length);
  SynthSample sample{writer.Take(), ""};
  sample.answer = sample.messages.back().content;
  return sample;
}

std::string ToJsonLine(const SynthSample& sample) {
  // Written field by field, in the expected order; a library's object would sort them.
  std::string messages;
  for (const ChatMessage& message : sample.messages) {
    messages += fmt::format("{}{{\"role\": {}, \"content\": {}}}", messages.empty() ? "" : ", ",
                            Json(Name(message.role)).dump(), Json(message.content).dump());
  }
  return fmt::format("{{\"messages\": [{}], \"answer\": {}}}", messages,
                     Json(sample.answer).dump());
}

absl::Status WriteSynth(const SynthOptions& options, const std::string& path) {
  if (options.samples < 1) {
    return InvalidArgument("{} samples were asked for; at least one is made", options.samples);
  }
  std::string out;
  for (int64_t i = 0; i < options.samples; ++i) {
    out += ToJsonLine(MakeSynthSample(options, i));
    out += '\n';
  }
  return WriteFileAtomically(path, out);
}

}  // namespace shoal::worker

// Conversations of any text: only the template writes special tokens, and replies decode to what
// was said.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/check.h"
#include "core/data/chat_template.h"
#include "core/data/tokenizer/unicode.h"

namespace {

using shoal::worker::ChatMessage;
using shoal::worker::ChatTemplate;
using shoal::worker::Tokenizer;

struct Subject {
  std::unique_ptr<Tokenizer> tokenizer;
  ChatTemplate chat;
};

Subject Load(const char* name, shoal::plan::Template kind, int64_t eos) {
  auto tokenizer =
      Tokenizer::Load(std::string(SHOAL_TESTDATA) + "/" + name + ".tokenizer.json").value();
  auto chat = ChatTemplate::Create(kind, *tokenizer, {.bos = -1, .eos = eos}).value();
  return {std::move(tokenizer), std::move(chat)};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using shoal::plan::Template;
  using shoal::worker::Role;
  static const auto& subjects = *new auto(std::to_array<Subject>(
      {Load("trained", Template::kPlain, 1), Load("trained", Template::kChatML, 1),
       Load("llama3", Template::kLlama3, -1), Load("llama2", Template::kPlain, 2)}));
  const std::string text = shoal::LossyUtf8({reinterpret_cast<const char*>(data), size});
  size_t middle = text.size() / 2;
  while (middle > 0 && (static_cast<unsigned char>(text[middle]) & 0xC0) == 0x80) {
    --middle;
  }
  const std::vector<ChatMessage> messages = {{Role::kUser, text.substr(0, middle)},
                                             {Role::kAssistant, text.substr(middle)}};
  for (const Subject& subject : subjects) {
    const auto conversation = subject.chat.Encode(messages);
    SHOAL_CHECK(conversation.ok());
    std::vector<int32_t> reply;
    for (size_t i = 0; i < conversation->tokens.size(); ++i) {
      if (conversation->weights[i] > 0) {
        reply.push_back(conversation->tokens[i]);
      }
    }
    SHOAL_CHECK(!reply.empty() && reply.back() == subject.chat.end_of_turn());
    SHOAL_CHECK(std::count(reply.begin(), reply.end(), subject.chat.end_of_turn()) == 1);
    const bool trims = &subject == &subjects[2];
    // SentencePiece writes a space as U+2581, so a text that contains that character comes back
    // with a space in its place.
    const bool ambiguous =
        &subject == &subjects[3] && messages[1].content.find("\u2581") != std::string::npos;
    SHOAL_CHECK(trims || ambiguous || subject.chat.DecodeReply(reply) == messages[1].content);
  }
  return 0;
}

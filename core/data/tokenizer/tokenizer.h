// The tokenizer of a Hugging Face model folder: text to token ids and back, as tokenizer.json
// describes it.
//
// Reads BPE models of both kinds in use: SentencePiece-like (Llama 2, stories260k: normaliser, byte
// fallback) and byte-level (GPT-2, Qwen2, Llama 3: a regular expression cuts text into words, bytes
// are written as printable characters). The same text gives the same ids as Hugging Face's
// tokenizers library; what the file asks for and Shoal does not know is refused by name when it is
// read. "truncation" and "padding" are settings of use, not of the vocabulary, and are not looked
// at.
//
// Used by data preparation, the chat templates, `shoal generate` and `shoal eval`. Immutable once
// made, so threads may share one. The file is hostile until parsed: sizes, nesting, ids and what
// rules can make text grow to are bounded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace shoal::worker {

struct EncodeOptions {
  // Puts what the file's post-processor says (begin of sequence, mostly) around the ids.
  bool add_special = true;
  // "<s>" in the text is the special token; otherwise it is the three characters. Off for text that
  // users wrote.
  bool parse_special = true;
  // The text goes on from text encoded before: no space or marker is put before its first word.
  bool continues = false;
};

class Tokenizer {
 public:
  // `path` is a tokenizer.json or the folder that holds one.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  // `name` stands for the file in messages.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(std::string_view json,
                                                          const std::string& name);
  ~Tokenizer();

  // InvalidArgument for text that is not UTF-8 or has characters that the vocabulary cannot write.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options = {}) const;

  // Ids outside of the vocabulary are left out (a model's output layer may be larger), and bytes
  // that are not UTF-8 become U+FFFD.
  std::string Decode(std::span<const int32_t> ids, bool skip_special = true) const;

  std::optional<int32_t> TokenToId(std::string_view token) const;
  std::optional<std::string_view> IdToToken(int32_t id) const;
  bool IsSpecial(int32_t id) const;

  // The largest id plus one: a model needs at least as many rows.
  int64_t vocabulary() const;
  // What add_special puts before text, e.g. the begin-of-sequence token.
  const std::vector<int32_t>& prefix() const;
  // Of the file's bytes; equal files have equal hashes on every machine.
  uint64_t hash() const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace shoal::worker

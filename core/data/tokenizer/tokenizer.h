// The tokenizer of a Hugging Face model folder: turns text into token ids and back, as
// tokenizer.json describes it.
//
// Reads BPE models of both kinds in use: SentencePiece-like (Llama 2, stories260k: normaliser, byte
// fallback) and byte-level (GPT-2, Qwen2, Llama 3: a regular expression cuts text into words, bytes
// are written as printable characters). The same text gives the same ids as Hugging Face's
// tokenizers library. Features of the file that Shoal does not support are refused by name when it
// is read. "truncation" and "padding" are ignored: they configure use, not the vocabulary.
//
// Used by data preparation, the chat templates, `shoal generate` and `shoal eval`. Immutable once
// made, so threads may share one. The file is hostile until parsed: sizes, nesting, ids and how far
// rules can make text grow are bounded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/tokenizer/added_tokens.h"

namespace shoal::worker {

struct EncodeOptions {
  // Adds what the file's post-processor asks for (usually begin of sequence) around the ids.
  bool add_special = true;
  // Reads "<s>" in the text as the special token; otherwise it is three characters. Off for text
  // that users wrote.
  bool parse_special = true;
  // The text continues text encoded before: no space or marker is put before its first word.
  bool continues = false;
  // Tokens that are read as special ones, whatever the file says.
  std::span<const int32_t> control = {};
};

class Tokenizer {
 public:
  // `path` is a tokenizer.json or the folder that holds one.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  // `name` stands for the file in messages.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(std::string_view json,
                                                          const std::string& name);
  ~Tokenizer();

  // InvalidArgument for text that is not UTF-8 or has characters that the vocabulary cannot
  // express.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options = {}) const;

  // The two halves of Encode for text of which a part is the program's own. Cuts at added tokens;
  // special ones, and those of `control`, count only where all of one lies within one of
  // `special_within`, which come in order and do not touch.
  std::vector<Segment> CutAtTokens(std::string_view text, std::span<const TextRange> special_within,
                                   std::span<const int32_t> control) const;
  // Encodes what lies between such tokens, or a beginning of it, and reads none of them in it;
  // `first`: it begins the text.
  absl::StatusOr<std::vector<int32_t>> EncodeBetween(std::string_view text, bool first,
                                                     std::span<const int32_t> control) const;

  // Skips ids outside the vocabulary (a model's output layer may be larger); bytes that are not
  // UTF-8 become U+FFFD.
  std::string Decode(std::span<const int32_t> ids, bool skip_special = true) const;

  std::optional<int32_t> TokenToId(std::string_view token) const;
  std::optional<std::string_view> IdToToken(int32_t id) const;
  bool IsSpecial(int32_t id) const;
  // Returns the ids of added tokens, special or not.
  const std::vector<int32_t>& added_tokens() const;

  // Returns the largest id plus one: a model needs at least as many rows.
  int64_t vocabulary() const;
  // Returns what add_special puts before text, e.g. the begin-of-sequence token.
  const std::vector<int32_t>& prefix() const;
  // Returns the hash of the file's bytes; equal files have equal hashes on every machine.
  uint64_t hash() const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace shoal::worker

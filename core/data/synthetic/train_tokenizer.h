// A small byte-level BPE trainer: makes a tokenizer.json from samples, so that the quick start
// needs nothing from outside the project. Words are cut much as in Qwen2 (digits one by one, each
// with the space before it). Merges are chosen by count, and at equal counts the pair with the
// smaller ids, so the same input gives the same file on every machine. Hugging Face's library loads
// it and gives the same ids.
//
// Special tokens: <|bos|> 0, <|eos|> 1, <|im_start|> 2, <|im_end|> 3, which the templates plain and
// chatml need; <|bos|> is put before every text.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::worker {

struct TrainTokenizerOptions {
  // upper limit; at least the special tokens and the 256 bytes. Fewer if the text gives no more
  // pairs
  int64_t vocabulary = 512;
  std::map<std::string, std::string> fields;  // same as plan::DataOptions::fields
};

// Returns the text of a tokenizer.json. Counts the samples' contents and the words that the
// templates put around them.
absl::StatusOr<std::string> TrainTokenizer(const std::string& jsonl_path,
                                           const TrainTokenizerOptions& options);

// Writes tokenizer.json and a tokenizer_config.json (which names <|bos|> and <|eos|>) into
// `folder`.
absl::Status WriteTrainedTokenizer(const std::string& jsonl_path,
                                   const TrainTokenizerOptions& options, const std::string& folder);

}  // namespace shoal::worker

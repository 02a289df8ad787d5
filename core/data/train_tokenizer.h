// A small byte-level BPE trainer: makes a tokenizer.json from a JSONL file, so that the quick start
// needs nothing that the project does not make. Words are cut much as Qwen2 does (digits one by
// one, each with the space before it), merges are chosen by count, and of equal counts the pair
// with the smaller ids, so the same input gives the same file on every machine. Hugging Face's
// library loads it and gives the same ids.
//
// Special tokens: <|bos|> 0, <|eos|> 1, <|im_start|> 2, <|im_end|> 3: what the templates plain and
// chatml need; <|bos|> is put before every text.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::worker {

struct TrainTokenizerOptions {
  int64_t vocabulary = 512;  // at most; at least the special tokens and the 256 bytes. Fewer if the
                             // text gives no more pairs
  std::map<std::string, std::string> fields;  // as plan::DataOptions::fields
};

// The text of a tokenizer.json. The samples' contents count, and the words that the templates put
// around them.
absl::StatusOr<std::string> TrainTokenizer(const std::string& jsonl_path,
                                           const TrainTokenizerOptions& options);

// Writes tokenizer.json and a tokenizer_config.json (which names <|bos|> and <|eos|>) into
// `folder`.
absl::Status WriteTrainedTokenizer(const std::string& jsonl_path,
                                   const TrainTokenizerOptions& options, const std::string& folder);

}  // namespace shoal::worker

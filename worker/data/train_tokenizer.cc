#include "worker/data/train_tokenizer.h"

#include <algorithm>
#include <array>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/file.h"
#include "common/status.h"
#include "nlohmann/json.hpp"
#include "worker/data/jsonl.h"
#include "worker/data/pre_tokenizer.h"
#include "worker/data/unicode.h"

namespace shoal::worker {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array<const char*, 4> kSpecialTokens = {"<|bos|>", "<|eos|>", "<|im_start|>",
                                                       "<|im_end|>"};
constexpr int64_t kSmallestVocabulary = static_cast<int64_t>(kSpecialTokens.size()) + 256;
constexpr int64_t kLargestVocabulary = 1 << 20;
constexpr int64_t kMinPairCount = 2;

constexpr const char* kWordPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

OrderedJson PreTokenizerJson() {
  return {{"type", "Sequence"},
          {"pretokenizers", OrderedJson::array({{{"type", "Split"},
                                                 {"pattern", {{"Regex", kWordPattern}}},
                                                 {"behavior", "Isolated"},
                                                 {"invert", false}},
                                                {{"type", "ByteLevel"},
                                                 {"add_prefix_space", false},
                                                 {"trim_offsets", true},
                                                 {"use_regex", false}}})}};
}

using Pair = std::pair<int32_t, int32_t>;
struct PairHash {
  size_t operator()(const Pair& pair) const {
    return (static_cast<uint64_t>(static_cast<uint32_t>(pair.first)) << 32 |
            static_cast<uint32_t>(pair.second)) *
           0x9E3779B97F4A7C15ull;
  }
};

struct Word {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

// Chooses merges over a set of counted words.
class Merger {
 public:
  // Symbols are ids; `texts` says what they are written as and grows with each merge.
  Merger(std::vector<Word> words, std::vector<std::string>& texts)
      : words_(std::move(words)), texts_(texts) {
    for (size_t id = 0; id < texts_.size(); ++id) {
      ids_.emplace(texts_[id], static_cast<int32_t>(id));
    }
    for (size_t w = 0; w < words_.size(); ++w) {
      const std::vector<int32_t>& symbols = words_[w].symbols;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        Change({symbols[i], symbols[i + 1]}, words_[w].count, w);
      }
    }
    for (const auto& [pair, count] : counts_) {
      queue_.push({count, pair});
    }
  }

  // Makes the best merge; false if no pair is left that occurs often enough.
  bool Merge(std::vector<Pair>& merges) {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const int64_t now = counts_[best.pair];
      if (now < kMinPairCount) {
        continue;
      }
      if (now != best.count) {  // it has changed since: it waits for its turn again
        queue_.push({now, best.pair});
        continue;
      }
      Apply(best.pair);
      merges.push_back(best.pair);
      return true;
    }
    return false;
  }

 private:
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void Change(const Pair& pair, int64_t by, size_t word) {
    counts_[pair] += by;
    if (by > 0) {
      std::vector<size_t>& places = places_[pair];
      if (places.empty() || places.back() != word) {
        places.push_back(word);
      }
    }
  }

  void Apply(const Pair& pair) {
    // Two ways to the same text ("a" "bc" and "ab" "c") are two merges to one token.
    const std::string text =
        texts_[static_cast<size_t>(pair.first)] + texts_[static_cast<size_t>(pair.second)];
    const auto [entry, is_new] = ids_.emplace(text, static_cast<int32_t>(texts_.size()));
    if (is_new) {
      texts_.push_back(text);
    }
    const int32_t merged = entry->second;
    std::vector<Pair> grown;
    const std::vector<size_t> places = std::move(places_[pair]);
    for (const size_t w : places) {
      MergeWord(pair, merged, w, grown);
    }
    counts_.erase(pair);
    places_.erase(pair);
    // A pair that has become more frequent must be offered again; the queue settles those that
    // became rarer.
    for (const Pair& changed : grown) {
      queue_.push({counts_[changed], changed});
    }
  }

  void MergeWord(const Pair& pair, int32_t merged, size_t w, std::vector<Pair>& grown) {
    std::vector<int32_t>& symbols = words_[w].symbols;
    const int64_t count = words_[w].count;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      if (symbols[i] != pair.first || symbols[i + 1] != pair.second) {
        continue;
      }
      if (i > 0) {
        Change({symbols[i - 1], symbols[i]}, -count, w);
        Change({symbols[i - 1], merged}, count, w);
        grown.push_back({symbols[i - 1], merged});
      }
      if (i + 2 < symbols.size()) {
        Change({symbols[i + 1], symbols[i + 2]}, -count, w);
        Change({merged, symbols[i + 2]}, count, w);
        grown.push_back({merged, symbols[i + 2]});
      }
      symbols[i] = merged;
      symbols.erase(symbols.begin() + static_cast<int64_t>(i) + 1);
    }
  }

  std::vector<Word> words_;
  std::vector<std::string>& texts_;
  std::unordered_map<std::string, int32_t> ids_;  // of texts_
  std::unordered_map<Pair, int64_t, PairHash> counts_;
  std::unordered_map<Pair, std::vector<size_t>, PairHash>
      places_;  // words that had the pair at some time
  std::priority_queue<Candidate> queue_;
};

// Counts words, as they are written in the byte alphabet. Ordered, so that nothing depends on a
// hash table's order.
class WordCounter {
 public:
  static absl::StatusOr<WordCounter> Create() {
    const Json json = Json::parse(PreTokenizerJson().dump());
    SHOAL_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer,
                           PreTokenizer::Parse(json, "tokenizer trainer"));
    return WordCounter(std::move(pre_tokenizer));
  }

  absl::Status Add(const std::string& text) {
    Pieces pieces{text, {{0, text.size()}}};
    SHOAL_RETURN_IF_ERROR(pre_tokenizer_.Apply(pieces));
    for (size_t i = 0; i < pieces.ranges.size(); ++i) {
      ++counts_[std::string(pieces.piece(i))];
    }
    return absl::OkStatus();
  }

  std::vector<Word> Words() const {
    std::vector<Word> words;
    for (const auto& [text, count] : counts_) {
      Word word{{}, count};
      for (size_t i = 0; i < text.size(); i += CharacterLength(text[i])) {
        const int byte = ByteOfCharacter(FirstCharacter(std::string_view(text).substr(i)));
        word.symbols.push_back(static_cast<int32_t>(kSpecialTokens.size()) + byte);
      }
      words.push_back(std::move(word));
    }
    return words;
  }

 private:
  explicit WordCounter(PreTokenizer pre_tokenizer) : pre_tokenizer_(std::move(pre_tokenizer)) {}
  PreTokenizer pre_tokenizer_;
  std::map<std::string, int64_t> counts_;
};

// Counts a file's words as the templates will show them.
absl::StatusOr<std::vector<Word>> CountWords(const std::string& path,
                                             const TrainTokenizerOptions& options) {
  SHOAL_RETURN_IF_ERROR(CheckFields(options.fields));
  SHOAL_ASSIGN_OR_RETURN(WordCounter counter, WordCounter::Create());
  SHOAL_ASSIGN_OR_RETURN(const auto reader, JsonlReader::Open(path));
  while (true) {
    SHOAL_ASSIGN_OR_RETURN(const std::optional<std::string_view> line, reader->Next());
    if (!line.has_value()) {
      break;
    }
    SHOAL_ASSIGN_OR_RETURN(const JsonlSample sample,
                           ParseJsonlLine(*line, {.fields = options.fields}, reader->where()));
    if (sample.messages.empty()) {
      return InvalidArgument("{}: a tokenizer is trained on text, and this sample has none",
                             reader->where());
    }
    for (const ChatMessage& message : sample.messages) {
      const std::string role(Name(message.role));
      std::string plain_role = role;
      plain_role[0] = static_cast<char>(plain_role[0] - 'a' + 'A');
      SHOAL_RETURN_IF_ERROR(counter.Add(plain_role + ": " + message.content));
      SHOAL_RETURN_IF_ERROR(counter.Add(role + "\n"));
      SHOAL_RETURN_IF_ERROR(counter.Add(message.content));
    }
  }
  std::vector<Word> words = counter.Words();
  if (words.empty()) {
    return InvalidArgument("{}: there is no text to train a tokenizer on", path);
  }
  return words;
}

OrderedJson ToTokenizerJson(const std::vector<std::string>& texts,
                            const std::vector<Pair>& merges) {
  OrderedJson added = OrderedJson::array();
  OrderedJson vocabulary = OrderedJson::object();
  for (size_t id = 0; id < texts.size(); ++id) {
    vocabulary[texts[id]] = id;
    if (id < kSpecialTokens.size()) {
      added.push_back({{"id", id},
                       {"content", texts[id]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    }
  }
  OrderedJson merge_list = OrderedJson::array();
  for (const auto& [left, right] : merges) {
    merge_list.push_back(texts[static_cast<size_t>(left)] + " " +
                         texts[static_cast<size_t>(right)]);
  }
  const OrderedJson bos = {{"SpecialToken", {{"id", kSpecialTokens[0]}, {"type_id", 0}}}};
  const auto sequence = [](const char* name, int type) {
    return OrderedJson{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", PreTokenizerJson()},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", OrderedJson::array({bos, sequence("A", 0)})},
            {"pair", OrderedJson::array({bos, sequence("A", 0), sequence("B", 1)})},
            {"special_tokens",
             {{kSpecialTokens[0],
               {{"id", kSpecialTokens[0]}, {"ids", {0}}, {"tokens", {kSpecialTokens[0]}}}}}}}},
          {"decoder",
           {{"type", "ByteLevel"},
            {"add_prefix_space", false},
            {"trim_offsets", true},
            {"use_regex", false}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocabulary},
            {"merges", merge_list}}}};
}

}  // namespace

absl::StatusOr<std::string> TrainTokenizer(const std::string& jsonl_path,
                                           const TrainTokenizerOptions& options) {
  if (options.vocabulary < kSmallestVocabulary || options.vocabulary > kLargestVocabulary) {
    return InvalidArgument(
        "a vocabulary of {} is not possible: from {} (special tokens and bytes) to {}",
        options.vocabulary, kSmallestVocabulary, kLargestVocabulary);
  }
  SHOAL_ASSIGN_OR_RETURN(std::vector<Word> words, CountWords(jsonl_path, options));
  std::vector<std::string> texts(kSpecialTokens.begin(), kSpecialTokens.end());
  for (const char32_t character : ByteCharacters()) {
    AppendUtf8(character, texts.emplace_back());
  }
  Merger merger(std::move(words), texts);
  std::vector<Pair> merges;
  while (static_cast<int64_t>(texts.size()) < options.vocabulary && merger.Merge(merges)) {
  }
  return ToTokenizerJson(texts, merges).dump(1) + "\n";
}

absl::Status WriteTrainedTokenizer(const std::string& jsonl_path,
                                   const TrainTokenizerOptions& options,
                                   const std::string& folder) {
  SHOAL_ASSIGN_OR_RETURN(const std::string tokenizer, TrainTokenizer(jsonl_path, options));
  SHOAL_RETURN_IF_ERROR(CreateDirectories(folder));
  const OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                              {"bos_token", kSpecialTokens[0]},
                              {"eos_token", kSpecialTokens[1]},
                              {"clean_up_tokenization_spaces", false}};
  SHOAL_RETURN_IF_ERROR(
      WriteFileAtomically(folder + "/tokenizer_config.json", config.dump(1) + "\n"));
  return WriteFileAtomically(folder + "/tokenizer.json", tokenizer);
}

}  // namespace shoal::worker

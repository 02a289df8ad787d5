#include "core/data/synthetic/train_tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/data/jsonl.h"
#include "core/data/sample_reader.h"
#include "core/data/tokenizer/bpe_merger.h"
#include "core/data/tokenizer/pre_tokenizer.h"
#include "core/data/tokenizer/unicode.h"
#include "nlohmann/json.hpp"

namespace shoal::worker {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array<const char*, 4> kSpecialTokens = {"<|bos|>", "<|eos|>", "<|im_start|>",
                                                       "<|im_end|>"};
constexpr int64_t kSmallestVocabulary = static_cast<int64_t>(kSpecialTokens.size()) + 256;
constexpr int64_t kLargestVocabulary = 1 << 20;

constexpr const char* kWordPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+| ?\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

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

// Counts words in the byte alphabet. Ordered, so that nothing depends on a hash table's order.
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

  std::vector<CountedWord> Words() const {
    std::vector<CountedWord> words;
    for (const auto& [text, count] : counts_) {
      CountedWord word{{}, count};
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
absl::StatusOr<std::vector<CountedWord>> CountWords(const std::string& path,
                                                    const TrainTokenizerOptions& options) {
  SHOAL_RETURN_IF_ERROR(CheckFields(options.fields));
  SHOAL_ASSIGN_OR_RETURN(WordCounter counter, WordCounter::Create());
  SHOAL_ASSIGN_OR_RETURN(const auto reader, SampleReader::Open(path));
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
  std::vector<CountedWord> words = counter.Words();
  if (words.empty()) {
    return InvalidArgument("{}: there is no text to train a tokenizer on", path);
  }
  return words;
}

OrderedJson ToTokenizerJson(const std::vector<std::string>& texts,
                            const std::vector<SymbolPair>& merges) {
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
  SHOAL_ASSIGN_OR_RETURN(std::vector<CountedWord> words, CountWords(jsonl_path, options));
  std::vector<std::string> texts(kSpecialTokens.begin(), kSpecialTokens.end());
  for (const char32_t character : ByteCharacters()) {
    AppendUtf8(character, texts.emplace_back());
  }
  BpeMerger merger(std::move(words), texts);
  std::vector<SymbolPair> merges;
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

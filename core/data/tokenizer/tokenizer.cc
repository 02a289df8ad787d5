#include "core/data/tokenizer/tokenizer.h"

#include <filesystem>
#include <unordered_map>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/data/tokenizer/decoder.h"
#include "core/data/tokenizer/normalizer.h"
#include "core/data/tokenizer/pre_tokenizer.h"
#include "core/data/tokenizer/tokenizer_file.h"
#include "core/data/tokenizer/unicode.h"
#include "xxhash.h"

namespace shoal::worker {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{256} << 20;

struct Token {
  std::string text;
  bool present = false;
  bool special = false;
};

const Json& Part(const Json& root, const char* key) {
  static const Json null_value;
  const auto found = root.find(key);
  return found == root.end() ? null_value : *found;
}

}  // namespace

struct Tokenizer::State {
  uint64_t hash = 0;
  std::string name;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<Bpe> bpe;
  PostProcessor post_processor;
  Decoder decoder;
  AddedTokenMatcher raw_tokens;         // matched in the original text
  AddedTokenMatcher normalized_tokens;  // matched after the normaliser
  AddedTokenMatcher template_tokens;    // all, as they are written
  std::vector<int32_t> added_tokens;    // their ids
  std::vector<Token> tokens;            // by id
  std::unordered_map<std::string, int32_t> ids;

  absl::Status AddToken(const std::string& text, int32_t id);
  absl::Status AddAddedTokens(const std::vector<AddedToken>& added);
  absl::Status EncodeSegment(std::string text, bool at_start, const EncodeOptions& options,
                             std::vector<int32_t>& ids_out) const;
  absl::Status EncodeWords(std::string text, bool at_start, bool continues,
                           std::vector<int32_t>& ids_out) const;
};

absl::Status Tokenizer::State::AddToken(const std::string& text, int32_t id) {
  const auto index = static_cast<size_t>(id);
  if (index >= tokens.size()) {
    tokens.resize(index + 1);
  }
  if (tokens[index].present && tokens[index].text != text) {
    return InvalidArgument("{}: id {} belongs to both '{}' and '{}'", name, id, tokens[index].text,
                           text);
  }
  const auto [entry, is_new] = ids.emplace(text, id);
  if (!is_new && entry->second != id) {
    return InvalidArgument("{}: '{}' has both id {} and id {}", name, text, entry->second, id);
  }
  tokens[index].present = true;
  tokens[index].text = text;
  return absl::OkStatus();
}

absl::Status Tokenizer::State::AddAddedTokens(const std::vector<AddedToken>& added) {
  for (const AddedToken& token : added) {
    SHOAL_RETURN_IF_ERROR(AddToken(token.content, token.id));
    Token& entry = tokens[static_cast<size_t>(token.id)];
    entry.special = entry.special || token.special;
    template_tokens.Add(token, token.content);
    added_tokens.push_back(token.id);
    if (token.normalized) {
      std::string pattern = token.content;
      SHOAL_RETURN_IF_ERROR(normalizer.Apply(pattern, /*continues=*/false));
      normalized_tokens.Add(token, pattern);
    } else {
      raw_tokens.Add(token, token.content);
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::State::EncodeSegment(std::string text, bool at_start,
                                             const EncodeOptions& options,
                                             std::vector<int32_t>& ids_out) const {
  const bool continues = at_start && options.continues;
  SHOAL_RETURN_IF_ERROR(normalizer.Apply(text, continues));
  const std::vector<Segment> segments =
      normalized_tokens.Split(text, options.parse_special, options.control);
  if (segments.size() == 1 && segments[0].id < 0) {
    return EncodeWords(std::move(text), at_start, continues, ids_out);
  }
  for (const Segment& segment : segments) {
    if (segment.id >= 0) {
      ids_out.push_back(segment.id);
      continue;
    }
    const bool first = at_start && segment.begin == 0;
    SHOAL_RETURN_IF_ERROR(EncodeWords(text.substr(segment.begin, segment.end - segment.begin),
                                      first, first && continues, ids_out));
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::State::EncodeWords(std::string text, bool at_start, bool continues,
                                           std::vector<int32_t>& ids_out) const {
  const size_t size = text.size();
  Pieces pieces{std::move(text), {{0, size}}, at_start, continues};
  SHOAL_RETURN_IF_ERROR(pre_tokenizer.Apply(pieces));
  for (size_t i = 0; i < pieces.ranges.size(); ++i) {
    SHOAL_RETURN_IF_ERROR(bpe->Encode(pieces.piece(i), ids_out));
  }
  return absl::OkStatus();
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  std::error_code error;
  const std::string file =
      std::filesystem::is_directory(path, error) ? path + "/tokenizer.json" : path;
  SHOAL_ASSIGN_OR_RETURN(const std::string json, ReadFile(file, kMaxFileBytes));
  return Parse(json, file);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Parse(std::string_view json,
                                                            const std::string& name) {
  SHOAL_ASSIGN_OR_RETURN(const Json root, ParseJson(json, name));
  SHOAL_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::From(root, name));
  SHOAL_RETURN_IF_ERROR(
      object.AllowOnly({"version", "truncation", "padding", "added_tokens", "normalizer",
                        "pre_tokenizer", "post_processor", "decoder", "model"}));
  auto state = std::make_unique<State>();
  state->name = name;
  state->hash = XXH3_64bits(json.data(), json.size());
  SHOAL_ASSIGN_OR_RETURN(state->normalizer,
                         Normalizer::Parse(Part(root, "normalizer"), name + ": normalizer"));
  SHOAL_ASSIGN_OR_RETURN(state->pre_tokenizer, PreTokenizer::Parse(Part(root, "pre_tokenizer"),
                                                                   name + ": pre_tokenizer"));
  SHOAL_ASSIGN_OR_RETURN(state->decoder, Decoder::Parse(Part(root, "decoder"), name + ": decoder"));
  SHOAL_ASSIGN_OR_RETURN(state->post_processor, ParsePostProcessor(Part(root, "post_processor"),
                                                                   name + ": post_processor"));
  SHOAL_ASSIGN_OR_RETURN(BpeModel model, ParseBpeModel(Part(root, "model"), name + ": model"));
  for (const auto& [token, id] : model.vocabulary) {
    SHOAL_RETURN_IF_ERROR(state->AddToken(token, id));
  }
  SHOAL_ASSIGN_OR_RETURN(const std::vector<AddedToken> added,
                         ParseAddedTokens(Part(root, "added_tokens"), name + ": added_tokens"));
  SHOAL_RETURN_IF_ERROR(state->AddAddedTokens(added));
  for (const std::vector<int32_t>* ids :
       {&state->post_processor.prefix, &state->post_processor.suffix}) {
    for (const int32_t id : *ids) {
      if (static_cast<size_t>(id) >= state->tokens.size() ||
          !state->tokens[static_cast<size_t>(id)].present) {
        return InvalidArgument("{}: post_processor adds id {}, which is no token", name, id);
      }
    }
  }
  SHOAL_ASSIGN_OR_RETURN(state->bpe, Bpe::Create(std::move(model), name + ": model"));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(state)));
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return InvalidArgument("text of {} bytes is more than the {} that are encoded at once",
                           text.size(), kMaxTextBytes);
  }
  if (const std::optional<size_t> invalid = FirstInvalidUtf8(text); invalid.has_value()) {
    return InvalidArgument("text is not UTF-8 at byte {}", *invalid);
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 2 + 2);
  if (options.add_special) {
    ids = state_->post_processor.prefix;
  }
  for (const Segment& segment :
       state_->raw_tokens.Split(text, options.parse_special, options.control)) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
      continue;
    }
    SHOAL_RETURN_IF_ERROR(
        state_->EncodeSegment(std::string(text.substr(segment.begin, segment.end - segment.begin)),
                              segment.begin == 0, options, ids));
  }
  if (options.add_special) {
    ids.insert(ids.end(), state_->post_processor.suffix.begin(),
               state_->post_processor.suffix.end());
  }
  return ids;
}

std::vector<Segment> Tokenizer::CutAtTokens(std::string_view text,
                                            std::span<const TextRange> special_within,
                                            std::span<const int32_t> control) const {
  return state_->template_tokens.Split(text, special_within, control);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeBetween(
    std::string_view text, bool first, std::span<const int32_t> control) const {
  if (text.size() > kMaxTextBytes) {
    return InvalidArgument("text of {} bytes is more than the {} that are encoded at once",
                           text.size(), kMaxTextBytes);
  }
  std::vector<int32_t> ids;
  SHOAL_RETURN_IF_ERROR(state_->EncodeSegment(
      std::string(text), first, {.add_special = false, .parse_special = false, .control = control},
      ids));
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    const std::optional<std::string_view> token = IdToToken(id);
    if (token.has_value() && !(skip_special && IsSpecial(id))) {
      tokens.emplace_back(*token);
    }
  }
  return state_->decoder.Apply(std::move(tokens));
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view token) const {
  const auto found = state_->ids.find(std::string(token));
  return found == state_->ids.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::string_view> Tokenizer::IdToToken(int32_t id) const {
  if (id < 0 || id >= vocabulary() || !state_->tokens[static_cast<size_t>(id)].present) {
    return std::nullopt;
  }
  return state_->tokens[static_cast<size_t>(id)].text;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < vocabulary() && state_->tokens[static_cast<size_t>(id)].special;
}

const std::vector<int32_t>& Tokenizer::added_tokens() const { return state_->added_tokens; }
int64_t Tokenizer::vocabulary() const { return static_cast<int64_t>(state_->tokens.size()); }
const std::vector<int32_t>& Tokenizer::prefix() const { return state_->post_processor.prefix; }
uint64_t Tokenizer::hash() const { return state_->hash; }

}  // namespace shoal::worker

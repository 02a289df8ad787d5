#include "core/data/jsonl.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "core/base/json/json.h"
#include "core/base/status.h"
#include "core/data/token_file.h"

namespace shoal::worker {
namespace {

constexpr std::array<std::string_view, 6> kFields = {"messages",  "prompt", "completion",
                                                     "input_ids", "labels", "answer"};

// Finds our fields under the file's names.
class Fields {
 public:
  Fields(const JsonObject& object, const JsonlOptions& options)
      : object_(object), options_(options) {}

  std::string NameOf(const std::string& field) const {
    const auto found = options_.fields.find(field);
    return found == options_.fields.end() ? field : found->second;
  }
  bool Has(const std::string& field) const { return object_.Find(NameOf(field)) != nullptr; }
  absl::StatusOr<std::string> String(const std::string& field) const {
    return object_.String(NameOf(field));
  }
  absl::StatusOr<const Json*> Array(const std::string& field) const {
    return object_.Array(NameOf(field));
  }
  // Text or a number; anything else that happens to have this name is not our field.
  std::optional<std::string> Answer() const {
    const Json* value = object_.Find(NameOf("answer"));
    if (value == nullptr || !(value->is_string() || value->is_number())) {
      return std::nullopt;
    }
    return value->is_string() ? value->get<std::string>() : value->dump();
  }

 private:
  const JsonObject& object_;
  const JsonlOptions& options_;
};

absl::StatusOr<std::vector<ChatMessage>> ParseMessages(const Json& list, std::string_view where) {
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < list.size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const JsonObject object,
                           JsonObject::From(list[i], fmt::format("{}: message {}", where, i)));
    SHOAL_ASSIGN_OR_RETURN(const std::string role_name, object.String("role"));
    const absl::StatusOr<Role> role = ParseRole(role_name);
    if (!role.ok()) {
      return Annotate(role.status(), object.where());
    }
    SHOAL_ASSIGN_OR_RETURN(std::string content, object.String("content"));
    messages.push_back({*role, std::move(content)});
  }
  if (messages.empty()) {
    return InvalidArgument("{}: there are no messages", where);
  }
  return messages;
}

absl::StatusOr<std::vector<int32_t>> ParseIds(const Json& list, const std::string& name,
                                              bool labels, int64_t vocabulary,
                                              std::string_view where) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& id = list[i];
    if (labels && id.is_number_integer() && id == formats::kIgnoredLabel) {
      ids.push_back(formats::kIgnoredLabel);
      continue;
    }
    if (!id.is_number_integer() || id < 0 || id >= vocabulary) {
      return InvalidArgument("{}: {}[{}] is {}, not {}an id of the vocabulary (0 to {})", where,
                             name, i, id.is_primitive() ? id.dump() : id.type_name(),
                             labels ? "-100 or " : "", vocabulary - 1);
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

absl::Status ParseTokens(const Fields& fields, int64_t vocabulary, std::string_view where,
                         JsonlSample& sample) {
  SHOAL_ASSIGN_OR_RETURN(const Json* ids, fields.Array("input_ids"));
  SHOAL_ASSIGN_OR_RETURN(const Json* labels, fields.Array("labels"));
  SHOAL_ASSIGN_OR_RETURN(sample.input_ids,
                         ParseIds(*ids, fields.NameOf("input_ids"), false, vocabulary, where));
  SHOAL_ASSIGN_OR_RETURN(sample.labels,
                         ParseIds(*labels, fields.NameOf("labels"), true, vocabulary, where));
  if (sample.input_ids.size() != sample.labels.size()) {
    return InvalidArgument("{}: {} has {} entries and {} has {}; they must be equally many", where,
                           fields.NameOf("input_ids"), sample.input_ids.size(),
                           fields.NameOf("labels"), sample.labels.size());
  }
  return absl::OkStatus();
}

bool IsText(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string();
}

// Says what to do about a line in one of the forms that other programs train on; empty for a line
// that is like none.
std::string KnownForm(const Json& json) {
  const auto turns = json.find("conversations");
  if (turns != json.end() && turns->is_array() && !turns->empty() && turns->front().is_object() &&
      turns->front().contains("from")) {
    return "this looks like ShareGPT (conversations of from and value); write each line as "
           "{\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]}";
  }
  if (IsText(json, "instruction") && IsText(json, "output")) {
    return "this looks like Alpaca (instruction, input and output); where no line has an input, "
           "data.fields {prompt: instruction, completion: output} reads it, else join instruction "
           "and input to a prompt first";
  }
  if (IsText(json, "text")) {
    return "this looks like plain text for pretraining; give a prompt and a completion, or "
           "messages, or input_ids and labels";
  }
  return "";
}

// Says of what no line of JSONL begins with what it may be; empty where that is not known.
std::string KnownFile(std::string_view line) {
  if (line.starts_with("\x1f\x8b")) {
    return "the file is compressed by gzip; unpack it with gunzip";
  }
  if (line.starts_with("PAR1")) {
    return "the file is Parquet; write it as JSONL";
  }
  if (line.starts_with('[')) {
    return "the file is a list; JSONL has one object a line, without brackets and commas between";
  }
  return line.starts_with('{') ? "" : "is this plain text? JSONL has one object a line";
}

// Returns "question, answer": the keys that a line has instead of the expected ones.
std::string KeysOf(const Json& json) {
  std::string keys;
  for (const auto& item : json.items()) {
    if (keys.size() > 200) {
      return keys + ", ...";
    }
    keys += fmt::format("{}'{}'", keys.empty() ? "" : ", ", item.key());
  }
  return keys.empty() ? "nothing" : keys;
}

}  // namespace

absl::Status CheckFields(const std::map<std::string, std::string>& fields) {
  for (const auto& [ours, theirs] : fields) {
    if (std::find(kFields.begin(), kFields.end(), ours) == kFields.end()) {
      return InvalidArgument(
          "data.fields: unknown name '{}'; known are messages, prompt, completion, input_ids, "
          "labels and answer",
          ours);
    }
    if (theirs.empty()) {
      return InvalidArgument("data.fields: the name for '{}' is empty", ours);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<JsonlSample> ParseJsonlLine(std::string_view line, const JsonlOptions& options,
                                           std::string_view where) {
  const auto parsed = ParseJson(line, where);
  if (!parsed.ok() || !parsed->is_object()) {
    const std::string hint = KnownFile(line);
    const absl::Status status =
        parsed.ok() ? JsonObject::From(*parsed, std::string(where)).status() : parsed.status();
    return InvalidArgument("{}{}{}", Message(status), hint.empty() ? "" : "; ", hint);
  }
  const Json& json = *parsed;
  SHOAL_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::From(json, std::string(where)));
  const Fields fields(object, options);
  JsonlSample sample;
  if (fields.Has("messages")) {
    SHOAL_ASSIGN_OR_RETURN(const Json* list, fields.Array("messages"));
    SHOAL_ASSIGN_OR_RETURN(sample.messages, ParseMessages(*list, where));
  } else if (fields.Has("input_ids")) {
    SHOAL_RETURN_IF_ERROR(ParseTokens(fields, options.vocabulary, where, sample));
  } else if (fields.Has("prompt") || fields.Has("completion")) {
    SHOAL_ASSIGN_OR_RETURN(std::string prompt, fields.String("prompt"));
    SHOAL_ASSIGN_OR_RETURN(std::string completion, fields.String("completion"));
    sample.messages = {{Role::kUser, std::move(prompt)}, {Role::kAssistant, std::move(completion)}};
  } else if (const std::string form = KnownForm(json); !form.empty()) {
    return InvalidArgument("{}: {}", where, form);
  } else {
    return InvalidArgument(
        "{}: none of '{}', '{}' or '{}' is there, but {}; name the file's fields with data.fields, "
        "e.g. "
        "{{prompt: question, completion: answer}}",
        where, fields.NameOf("messages"), fields.NameOf("prompt"), fields.NameOf("input_ids"),
        KeysOf(json));
  }
  sample.answer = fields.Answer();
  return sample;
}

absl::StatusOr<std::unique_ptr<JsonlReader>> JsonlReader::Open(const std::string& path) {
  std::unique_ptr<JsonlReader> reader(new JsonlReader(path));
  reader->fd_.Reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!reader->fd_.valid() || fstat(reader->fd_.get(), &info) != 0) {
    return ErrnoToStatus(errno, fmt::format("cannot open {}", path));
  }
  if (S_ISDIR(info.st_mode)) {
    return InvalidArgument("{} is a folder, a JSONL file was expected", path);
  }
  reader->bytes_total_ = info.st_size;
  return reader;
}

// Appends more to the buffer; false at the file's end.
absl::StatusOr<bool> JsonlReader::Fill() {
  constexpr size_t kBlock = size_t{1} << 18;
  buffer_.erase(0, begin_);
  begin_ = 0;
  const size_t before = buffer_.size();
  buffer_.resize(before + kBlock);
  ssize_t got = 0;
  do {
    got = read(fd_.get(), buffer_.data() + before, kBlock);
  } while (got < 0 && errno == EINTR);
  const int error_number = errno;
  buffer_.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got < 0) {
    return ErrnoToStatus(error_number, fmt::format("cannot read {}", path_));
  }
  return got > 0;
}

absl::StatusOr<std::optional<std::string_view>> JsonlReader::Next() {
  size_t searched = begin_;
  while (true) {
    const size_t end = buffer_.find('\n', searched);
    if (end == std::string::npos && !at_end_) {
      searched =
          buffer_.size() - begin_;  // an offset after Fill, which moves the rest to the front
      if (searched > kMaxLineBytes) {
        return InvalidArgument("{}:{}: a line of more than {} bytes; is this JSONL?", path_,
                               line_ + 1, kMaxLineBytes);
      }
      SHOAL_ASSIGN_OR_RETURN(const bool more, Fill());
      at_end_ = !more;
      continue;
    }
    if (end == std::string::npos && begin_ == buffer_.size()) {
      return std::nullopt;
    }
    const size_t stop = end == std::string::npos ? buffer_.size() : end;
    std::string_view line = std::string_view(buffer_).substr(begin_, stop - begin_);
    const size_t consumed = stop - begin_ + (end == std::string::npos ? 0 : 1);
    bytes_read_ += static_cast<int64_t>(consumed);
    begin_ += consumed;
    searched = begin_;
    ++line_;
    if (line_ == 1 && line.starts_with("\xEF\xBB\xBF")) {
      line.remove_prefix(3);
    }
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      return line;
    }
  }
}

std::string JsonlReader::where() const { return fmt::format("{}:{}", path_, line_); }

}  // namespace shoal::worker

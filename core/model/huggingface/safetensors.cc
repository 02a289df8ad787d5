#include "core/model/huggingface/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "core/base/check.h"
#include "core/base/file.h"
#include "core/base/json/json.h"
#include "core/base/status.h"

namespace shoal::formats {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr const char* kMetadataKey = "__metadata__";

// Returns a tensor's number of elements; -1 if the shape is not a list of sizes or its product does
// not fit.
int64_t ElementCount(const Json& shape, std::vector<int64_t>& sizes) {
  if (!shape.is_array()) {
    return -1;
  }
  int64_t count = 1;
  for (const Json& size : shape) {
    if (!size.is_number_unsigned() ||
        size.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return -1;
    }
    sizes.push_back(size.get<int64_t>());
    if (__builtin_mul_overflow(count, sizes.back(), &count)) {
      return -1;
    }
  }
  return count;
}

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
  const std::string* name = nullptr;
};

absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name, const Json& value,
                                            uint64_t data_bytes, Range& range) {
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    return InvalidArgument("tensor '{}': dtype, shape and data_offsets are expected", name);
  }
  SafetensorsEntry entry;
  const absl::StatusOr<DType> dtype = ParseDType(value["dtype"].get_ref<const std::string&>());
  if (!dtype.ok()) {
    return Annotate(dtype.status(), fmt::format("tensor '{}'", name));
  }
  entry.dtype = *dtype;
  const int64_t count = ElementCount(value["shape"], entry.shape);
  const Json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return InvalidArgument("tensor '{}': data_offsets are not [begin, end]", name);
  }
  range = {offsets[0].get<uint64_t>(), offsets[1].get<uint64_t>(), &name};
  if (range.begin > range.end || range.end > data_bytes) {
    return InvalidArgument(
        "tensor '{}': bytes {} to {} lie outside the file's {} bytes of data; truncated?", name,
        range.begin, range.end, data_bytes);
  }
  int64_t bytes = 0;
  if (count < 0 || __builtin_mul_overflow(count, SizeOf(entry.dtype), &bytes) ||
      static_cast<uint64_t>(bytes) != range.end - range.begin) {
    return InvalidArgument("tensor '{}': shape [{}] of {} does not take {} bytes", name,
                           fmt::join(entry.shape, ", "), Name(entry.dtype),
                           range.end - range.begin);
  }
  entry.begin = static_cast<int64_t>(range.begin);
  entry.bytes = bytes;
  return entry;
}

absl::Status ParseMetadata(const Json& value, std::map<std::string, std::string>* metadata) {
  if (!value.is_object()) {
    return InvalidArgument("__metadata__ is not an object");
  }
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      return InvalidArgument("__metadata__: '{}' is not a string", key);
    }
    if (metadata != nullptr) {
      (*metadata)[key] = text.get<std::string>();
    }
  }
  return absl::OkStatus();
}

// Checks that every byte of data belongs to exactly one tensor: nothing hidden, nothing shared.
absl::Status CheckRanges(std::vector<Range>& ranges, uint64_t data_bytes) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t next = 0;
  for (const Range& range : ranges) {
    if (range.begin != next) {
      return InvalidArgument(
          "tensor '{}' starts at byte {} of the data, {} the one before it, which ends at {}",
          *range.name, range.begin, range.begin < next ? "inside" : "with a gap after", next);
    }
    next = range.end;
  }
  if (next != data_bytes) {
    return InvalidArgument("{} bytes of data belong to no tensor", data_bytes - next);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> SafetensorsHeadBytes(std::span<const std::byte> head, int64_t file_bytes) {
  uint64_t header_bytes = 0;
  static_assert(sizeof(header_bytes) == kSafetensorsLengthBytes);
  if (head.size() < sizeof(header_bytes) || file_bytes < kSafetensorsLengthBytes) {
    return InvalidArgument("not a safetensors file ({} bytes)", file_bytes);
  }
  std::memcpy(&header_bytes, head.data(), sizeof(header_bytes));
  if (std::memcmp(&header_bytes, "version ", sizeof(header_bytes)) == 0) {
    return InvalidArgument(
        "this is a git-lfs pointer, not the weights it stands for; run git lfs pull in its folder");
  }
  if (header_bytes > kMaxHeaderBytes ||
      header_bytes > static_cast<uint64_t>(file_bytes - kSafetensorsLengthBytes)) {
    return InvalidArgument(
        "not a safetensors file, or truncated: a header of {} bytes in a file of {}", header_bytes,
        file_bytes);
  }
  return kSafetensorsLengthBytes + static_cast<int64_t>(header_bytes);
}

absl::StatusOr<std::map<std::string, SafetensorsEntry>> ParseSafetensors(
    std::span<const std::byte> head, int64_t file_bytes,
    std::map<std::string, std::string>* metadata) {
  SHOAL_ASSIGN_OR_RETURN(const int64_t head_bytes, SafetensorsHeadBytes(head, file_bytes));
  if (std::ssize(head) < head_bytes) {
    return InvalidArgument("the header takes {} bytes, there are {}", head_bytes, head.size());
  }
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + kSafetensorsLengthBytes,
                              static_cast<size_t>(head_bytes - kSafetensorsLengthBytes));
  SHOAL_ASSIGN_OR_RETURN(const Json header, ParseJson(text, "the header", RepeatedKeys::kRefuse));
  SHOAL_RETURN_IF_ERROR(JsonObject::From(header, "the header").status());
  const auto data_bytes = static_cast<uint64_t>(file_bytes - head_bytes);
  std::map<std::string, SafetensorsEntry> tensors;
  std::vector<Range> ranges;
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataKey) {
      SHOAL_RETURN_IF_ERROR(ParseMetadata(value, metadata));
      continue;
    }
    Range range;
    SHOAL_ASSIGN_OR_RETURN(SafetensorsEntry entry, ParseEntry(name, value, data_bytes, range));
    entry.begin += head_bytes;
    range.name = &tensors.emplace(name, std::move(entry)).first->first;
    ranges.push_back(range);
  }
  SHOAL_RETURN_IF_ERROR(CheckRanges(ranges, data_bytes));
  return tensors;
}

struct SafetensorsFile::State {
  InputFile file;
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
};

SafetensorsFile::SafetensorsFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsFile::~SafetensorsFile() = default;

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  auto state = std::make_unique<State>();
  SHOAL_ASSIGN_OR_RETURN(state->file, InputFile::Open(path));
  const int64_t size = state->file.size();
  std::vector<std::byte> head(static_cast<size_t>(std::min(size, kSafetensorsLengthBytes)));
  SHOAL_RETURN_IF_ERROR(state->file.Read(0, head));
  if (const auto head_bytes = SafetensorsHeadBytes(head, size); head_bytes.ok()) {
    head.resize(static_cast<size_t>(*head_bytes));
    SHOAL_RETURN_IF_ERROR(state->file.Read(0, head));
  }
  auto tensors = ParseSafetensors(head, size, &state->metadata);
  if (!tensors.ok()) {
    return Annotate(tensors.status(), path);
  }
  state->tensors = *std::move(tensors);
  return std::unique_ptr<SafetensorsFile>(new SafetensorsFile(std::move(state)));
}

const std::map<std::string, SafetensorsEntry>& SafetensorsFile::tensors() const {
  return state_->tensors;
}
const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return state_->metadata;
}
const std::string& SafetensorsFile::path() const { return state_->file.path(); }
absl::Status SafetensorsFile::Read(const SafetensorsEntry& tensor, int64_t offset,
                                   std::span<std::byte> out) const {
  SHOAL_CHECK(offset >= 0 && offset <= tensor.bytes - std::ssize(out));
  return state_->file.Read(tensor.begin + offset, out);
}

}  // namespace shoal::formats

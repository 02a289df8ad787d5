#include <cstring>
#include <set>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "core/model/huggingface/safetensors.h"
#include "nlohmann/json.hpp"

namespace shoal::formats {
namespace {

// The data starts at a multiple of this, as in the reference implementation.
constexpr int64_t kHeaderAlignment = 8;

absl::StatusOr<int64_t> ByteCount(const SafetensorsTensor& tensor) {
  int64_t bytes = SizeOf(tensor.dtype);
  for (const int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) {
      return InvalidArgument("tensor '{}' has an impossible shape", tensor.name);
    }
  }
  return bytes;
}

}  // namespace

struct SafetensorsWriter::State {
  std::string path;
  std::unique_ptr<StreamedFile> file;
  int64_t expected_bytes = 0;
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsWriter::~SafetensorsWriter() = default;

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, const std::vector<SafetensorsTensor>& tensors,
    const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    header["__metadata__"] = metadata;
  }
  int64_t offset = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (header.contains(tensor.name) || tensor.name == "__metadata__") {
      return InvalidArgument("{}: tensor name '{}' is taken", path, tensor.name);
    }
    SHOAL_ASSIGN_OR_RETURN(const int64_t bytes, ByteCount(tensor));
    header[tensor.name] = {{"dtype", std::string(Name(tensor.dtype))},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize(static_cast<size_t>(RoundUp(static_cast<int64_t>(text.size()), kHeaderAlignment)),
              ' ');
  const uint64_t header_bytes = text.size();

  auto state = std::make_unique<State>();
  state->path = path;
  SHOAL_ASSIGN_OR_RETURN(state->file, StreamedFile::Create(path));
  state->expected_bytes = static_cast<int64_t>(sizeof(header_bytes) + header_bytes) + offset;
  SHOAL_RETURN_IF_ERROR(state->file->Append(std::as_bytes(std::span(&header_bytes, 1))));
  SHOAL_RETURN_IF_ERROR(state->file->Append(std::as_bytes(std::span(text))));
  return std::unique_ptr<SafetensorsWriter>(new SafetensorsWriter(std::move(state)));
}

absl::Status SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) > state_->expected_bytes - state_->file->size()) {
    return InvalidArgument("{}: more data than the announced tensors hold", state_->path);
  }
  return state_->file->Append(bytes);
}

absl::Status SafetensorsWriter::Finish() {
  if (state_->file->size() != state_->expected_bytes) {
    return InvalidArgument("{}: {} bytes of the announced tensors were not written", state_->path,
                           state_->expected_bytes - state_->file->size());
  }
  return state_->file->Finish();
}

}  // namespace shoal::formats

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "core/base/bf16.h"
#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "core/model/family.h"
#include "core/model/huggingface/hf_config.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/huggingface/safetensors.h"
#include "nlohmann/json.hpp"

namespace shoal::formats {
namespace {

using plan::TensorSpec;
using plan::UnitSpec;

constexpr int64_t kPieceElements = 1 << 20;  // read and written at a time: 4 MiB of floats

// A tensor of a file: our own that it holds, one after the other.
struct FileTensor {
  int unit = 0;
  std::vector<TensorSpec> parts;

  const std::string& name() const { return parts.front().stored.name; }
  std::vector<int64_t> shape() const { return parts.front().stored_shape(); }
  int64_t bytes(DType dtype) const {
    int64_t count = 0;
    for (const TensorSpec& part : parts) {
      count += part.count();
    }
    return count * SizeOf(dtype);
  }
};
using FilePlan = std::vector<FileTensor>;

// Those of a unit, in the order of their first parts.
std::vector<FileTensor> JoinTensors(const UnitSpec& unit) {
  std::vector<FileTensor> joined;
  for (const TensorSpec& tensor : unit.tensors) {
    const auto same = std::ranges::find(joined, tensor.stored.name, &FileTensor::name);
    (same == joined.end() ? joined.emplace_back(FileTensor{unit.index, {}}) : *same)
        .parts.push_back(tensor);
  }
  return joined;
}

std::vector<FilePlan> PlanFiles(const plan::ModelSpec& spec, const HfWriteOptions& options) {
  std::vector<FilePlan> files(1);
  int64_t bytes = 0;
  for (const UnitSpec& unit : plan::BuildUnits(spec)) {
    for (FileTensor& tensor : JoinTensors(unit)) {
      const int64_t size = tensor.bytes(options.dtype);
      if (!files.back().empty() && bytes + size > options.max_file_bytes) {
        files.emplace_back();
        bytes = 0;
      }
      files.back().push_back(std::move(tensor));
      bytes += size;
    }
  }
  return files;
}

absl::Status WriteTensor(int unit, const TensorSpec& tensor, const plan::UnitReader& read,
                         DType dtype, SafetensorsWriter& writer) {
  std::vector<float> piece;
  std::vector<BFloat16> converted;
  for (int64_t done = 0; done < tensor.count();) {
    const int64_t count = std::min(kPieceElements, tensor.count() - done);
    piece.resize(static_cast<size_t>(count));
    SHOAL_RETURN_IF_ERROR(read(unit, tensor.offset + done, piece));
    if (dtype == DType::kF32) {
      SHOAL_RETURN_IF_ERROR(writer.Append(std::as_bytes(std::span(piece))));
    } else {
      converted.resize(piece.size());
      Convert(std::span<const float>(piece), converted.data());
      SHOAL_RETURN_IF_ERROR(writer.Append(std::as_bytes(std::span(converted))));
    }
    done += count;
  }
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, const FilePlan& file, const plan::UnitReader& read,
                       DType dtype) {
  std::vector<SafetensorsTensor> tensors;
  for (const FileTensor& tensor : file) {
    tensors.push_back({tensor.name(), dtype, tensor.shape()});
  }
  // transformers refuses a file without this mark.
  SHOAL_ASSIGN_OR_RETURN(auto writer, SafetensorsWriter::Create(path, tensors, {{"format", "pt"}}));
  for (const FileTensor& tensor : file) {
    for (const TensorSpec& part : tensor.parts) {
      SHOAL_RETURN_IF_ERROR(WriteTensor(tensor.unit, part, read, dtype, *writer));
    }
  }
  return writer->Finish();
}

absl::Status WriteShards(const std::string& folder, const std::vector<FilePlan>& files,
                         const plan::UnitReader& read, DType dtype) {
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  int64_t total_bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    SHOAL_RETURN_IF_ERROR(WriteFile(folder + "/" + name, files[i], read, dtype));
    for (const FileTensor& tensor : files[i]) {
      weight_map[tensor.name()] = name;
      total_bytes += tensor.bytes(dtype);
    }
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total_bytes}}},
                                        {"weight_map", weight_map}};
  return WriteFileAtomically(folder + "/model.safetensors.index.json", index.dump(2) + "\n");
}

absl::Status RemoveIfThere(const std::string& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  return error ? ErrnoToStatus(error.value(), fmt::format("cannot remove {}", path))
               : absl::OkStatus();
}

// The text with another element type, under the keys of transformers 4 and 5.
std::string WithElementType(std::string text, std::string_view type) {
  for (const std::string_view key : {"\"torch_dtype\"", "\"dtype\""}) {
    for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at)) {
      at += key.size();
      const size_t colon = text.find_first_not_of(" \t\r\n", at);
      if (colon == std::string::npos || text[colon] != ':') {
        continue;  // a value
      }
      const size_t begin = text.find_first_not_of(" \t\r\n", colon + 1);
      if (begin == std::string::npos || text[begin] != '"') {
        continue;  // null
      }
      const size_t end = text.find('"', begin + 1);
      text.replace(begin + 1, end - begin - 1, type);
    }
  }
  return text;
}

// config.json of the folder the model came from, byte for byte but for the element type; one of our
// own where that has none, or one of another model, or of one that has more parts.
std::string ConfigOf(const plan::ModelSpec& spec, const HfWriteOptions& options, std::string own) {
  if (options.config_folder.empty()) {
    return own;
  }
  const absl::StatusOr<std::string> text = ReadFile(options.config_folder + "/config.json");
  if (!text.ok()) {
    return own;
  }
  const absl::StatusOr<HfConfig> described = ParseConfig(*text, "config.json");
  return described.ok() && !described->composite && described->spec == spec
             ? WithElementType(*text, options.dtype == DType::kF32 ? "float32" : "bfloat16")
             : own;
}

absl::Status CopyMoreTemplates(const std::string& from, const std::string& to) {
  std::error_code error;
  std::filesystem::directory_iterator entry(from, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    std::error_code ignored;
    if (name.ends_with(".jinja") && entry->is_regular_file(ignored)) {
      SHOAL_RETURN_IF_ERROR(CreateDirectories(to));
      SHOAL_ASSIGN_OR_RETURN(const std::string contents, ReadFile(entry->path()));
      SHOAL_RETURN_IF_ERROR(WriteFileAtomically(fmt::format("{}/{}", to, name), contents));
    }
  }
  return error && error != std::errc::no_such_file_or_directory
             ? ErrnoToStatus(error.value(), "cannot read " + from)
             : absl::OkStatus();
}

}  // namespace

absl::Status CopyTokenizerFiles(const std::string& from, const std::string& to) {
  std::error_code error;
  if (std::filesystem::equivalent(from, to, error)) {
    return absl::OkStatus();
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "generation_config.json", "chat_template.jinja", "chat_template.json"}) {
    absl::StatusOr<std::string> contents = ReadFile(fmt::format("{}/{}", from, name));
    if (absl::IsNotFound(contents.status())) {
      continue;
    }
    SHOAL_RETURN_IF_ERROR(contents.status());
    SHOAL_RETURN_IF_ERROR(WriteFileAtomically(fmt::format("{}/{}", to, name), *contents));
  }
  return CopyMoreTemplates(from + "/additional_chat_templates", to + "/additional_chat_templates");
}

absl::Status WriteTensors(const std::string& path, std::span<const plan::UnitSpec> units,
                          const plan::UnitReader& read, DType dtype) {
  FilePlan file;
  for (const UnitSpec& unit : units) {
    std::ranges::move(JoinTensors(unit), std::back_inserter(file));
  }
  return WriteFile(path, file, read, dtype);
}

absl::Status WriteHfModel(const std::string& folder, const plan::ModelSpec& spec,
                          const plan::UnitReader& read, const HfWriteOptions& options) {
  if (options.dtype == DType::kF16) {
    return InvalidArgument("{}: weights are written as F32 or BF16, not F16", folder);
  }
  const std::string config = ModelSpecToJson(spec, options.dtype, options.special);
  SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec reread, ParseModelSpec(config, "config.json"));
  if (reread != spec) {
    return InvalidArgument("{}: config.json cannot describe this model (biases of a {}?)", folder,
                           plan::FamilyOf(spec).architecture);
  }
  SHOAL_RETURN_IF_ERROR(CreateDirectories(folder));
  const std::vector<FilePlan> files = PlanFiles(spec, options);
  const std::string single = folder + "/model.safetensors";
  // Otherwise readers would find what an earlier model left under the other name.
  if (files.size() == 1) {
    SHOAL_RETURN_IF_ERROR(WriteFile(single, files[0], read, options.dtype));
    SHOAL_RETURN_IF_ERROR(RemoveIfThere(single + ".index.json"));
  } else {
    SHOAL_RETURN_IF_ERROR(WriteShards(folder, files, read, options.dtype));
    SHOAL_RETURN_IF_ERROR(RemoveIfThere(single));
  }
  if (!options.tokenizer_folder.empty()) {
    SHOAL_RETURN_IF_ERROR(CopyTokenizerFiles(options.tokenizer_folder, folder));
  }
  return WriteFileAtomically(folder + "/config.json", ConfigOf(spec, options, config));
}

}  // namespace shoal::formats

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/base/check.h"
#include "core/base/json/json.h"
#include "core/base/status.h"
#include "core/model/family.h"
#include "core/model/huggingface/hf_config.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/huggingface/safetensors.h"
#include "core/model/huggingface/stored_tensor.h"

namespace shoal::formats {
namespace {

using plan::Role;
using plan::TensorSpec;
using plan::UnitSpec;

// Whether two tensors of one size have the same bytes.
absl::StatusOr<bool> HaveSameData(const StoredTensor& a, const StoredTensor& b) {
  std::vector<std::byte> of_a(1 << 20);
  std::vector<std::byte> of_b(of_a.size());
  for (int64_t at = 0; at < a.entry.bytes; at += std::ssize(of_a)) {
    const auto count = static_cast<size_t>(std::min(std::ssize(of_a), a.entry.bytes - at));
    SHOAL_RETURN_IF_ERROR(a.file->Read(a.entry, at, std::span(of_a).first(count)));
    SHOAL_RETURN_IF_ERROR(b.file->Read(b.entry, at, std::span(of_b).first(count)));
    if (std::memcmp(of_a.data(), of_b.data(), count) != 0) {
      return false;
    }
  }
  return true;
}

// Files of a composite model have the names of the text's part with its own before them, in the way
// of transformers 4 or 5. Nullopt: it is of another part.
std::optional<std::string> NameInText(const std::string& name) {
  for (const auto& [prefix, ours] :
       {std::pair("language_model.", ""), std::pair("model.language_model.", "model.")}) {
    if (name.starts_with(prefix)) {
      return ours + name.substr(std::strlen(prefix));
    }
  }
  return name.starts_with("lm_head.") ? std::optional(name) : std::nullopt;
}

// Buffers that older files contain and that are recomputed here.
bool IsIgnored(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

}  // namespace

struct HfModel::State {
  std::string folder;
  plan::ModelSpec spec;
  bool composite = false;  // HfConfig
  std::vector<UnitSpec> units;
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::map<std::string, StoredTensor> stored;
  std::vector<std::vector<const StoredTensor*>> by_unit;  // parallel to units' tensors

  absl::Status OpenFiles();
  absl::Status OpenIndexed(const std::string& index_path);
  absl::Status AddFile(const std::string& path);
  absl::Status CheckTensors();
  absl::Status CheckTiedHead();
  std::string NameOf(Role role) const {  // of the embedding or the head
    return plan::TensorName(plan::FamilyOf(spec), role, 0);
  }
};

absl::Status HfModel::State::AddFile(const std::string& path) {
  SHOAL_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(path));
  for (const auto& [full_name, entry] : file->tensors()) {
    const auto name = composite ? NameInText(full_name) : std::optional(full_name);
    if (name.has_value() && !stored.emplace(*name, StoredTensor{file.get(), entry}).second) {
      return InvalidArgument("{}: tensor '{}' is in another file of this model too", path,
                             full_name);
    }
  }
  files.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status HfModel::State::OpenIndexed(const std::string& index_path) {
  SHOAL_ASSIGN_OR_RETURN(const Json json, ReadJson(index_path));
  SHOAL_ASSIGN_OR_RETURN(const JsonObject index, JsonObject::From(json, index_path));
  SHOAL_ASSIGN_OR_RETURN(const JsonObject weight_map, index.Object("weight_map"));
  std::map<std::string, std::vector<std::string>> names_by_file;
  for (const auto& [name, file] : weight_map.json().items()) {
    if (!file.is_string()) {
      return InvalidArgument("{}: the file of tensor '{}' is not a name", index_path, name);
    }
    names_by_file[file.get<std::string>()].push_back(name);
  }
  for (const auto& [file, names] : names_by_file) {
    // An index must not reach outside its folder.
    if (std::filesystem::path(file).filename() != file || file == "..") {
      return InvalidArgument("{}: '{}' is not the name of a file in this folder", index_path, file);
    }
    SHOAL_RETURN_IF_ERROR(AddFile(folder + "/" + file));
    for (const std::string& name : names) {
      if (!files.back()->tensors().contains(name)) {
        return InvalidArgument("{}: tensor '{}' is not in {} as the index says", index_path, name,
                               file);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status HfModel::State::OpenFiles() {
  const std::string single = folder + "/model.safetensors";
  const std::string index = single + ".index.json";
  if (std::filesystem::exists(single)) {
    return AddFile(single);
  }
  if (std::filesystem::exists(index)) {
    return OpenIndexed(index);
  }
  return NotFound(
      "{} has neither model.safetensors nor model.safetensors.index.json; give the folder of a "
      "Hugging Face model",
      folder);
}

absl::Status HfModel::State::CheckTensors() {
  std::set<std::string_view> expected;
  for (const UnitSpec& unit : units) {
    std::vector<const StoredTensor*>& found = by_unit.emplace_back();
    for (const TensorSpec& tensor : unit.tensors) {
      const auto at = stored.find(tensor.stored.name);
      if (at == stored.end()) {
        return InvalidArgument(
            "{}: tensor '{}' is missing{}", folder, tensor.stored.name,
            tensor.role == Role::kHead
                ? " (where it shares the embedding, config.json says tie_word_embeddings: true)"
                : "");
      }
      if (at->second.entry.shape != tensor.stored_shape()) {
        return InvalidArgument("{}: tensor '{}' has shape {}, config.json asks for {}", folder,
                               tensor.stored.name, ShapeText(at->second.entry.shape),
                               ShapeText(tensor.stored_shape()));
      }
      found.push_back(&at->second);
      expected.insert(tensor.stored.name);
    }
  }
  for (const auto& [name, tensor] : stored) {
    if (expected.contains(name) || IsIgnored(name)) {
      continue;
    }
    if (spec.tied_embeddings && name == NameOf(Role::kHead)) {
      SHOAL_RETURN_IF_ERROR(CheckTiedHead());
      continue;
    }
    return InvalidArgument("{}: tensor '{}' is not part of a {} with this config.json", folder,
                           name, plan::FamilyOf(spec).architecture);
  }
  return absl::OkStatus();
}

// Some files store the head although it is the embedding; allowed as long as both are equal.
absl::Status HfModel::State::CheckTiedHead() {
  const std::string embedding_name = NameOf(Role::kEmbedding);
  const std::string head_name = NameOf(Role::kHead);
  const StoredTensor& embedding = stored.at(embedding_name);
  const StoredTensor& head = stored.at(head_name);
  bool same =
      embedding.entry.dtype == head.entry.dtype && embedding.entry.shape == head.entry.shape;
  if (same) {
    SHOAL_ASSIGN_OR_RETURN(same, HaveSameData(embedding, head));
  }
  return same ? absl::OkStatus()
              : InvalidArgument(
                    "{}: {} differs from {} although config.json ties them; set "
                    "tie_word_embeddings to false or drop {}",
                    folder, head_name, embedding_name, head_name);
}

HfModel::HfModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
HfModel::~HfModel() = default;

absl::StatusOr<std::unique_ptr<HfModel>> HfModel::Open(const std::string& folder) {
  auto state = std::make_unique<State>();
  state->folder = folder;
  SHOAL_ASSIGN_OR_RETURN(HfConfig config, ReadConfig(folder));
  state->spec = std::move(config.spec);
  state->composite = config.composite;
  state->units = plan::BuildUnits(state->spec);
  SHOAL_RETURN_IF_ERROR(state->OpenFiles());
  SHOAL_RETURN_IF_ERROR(state->CheckTensors());
  return std::unique_ptr<HfModel>(new HfModel(std::move(state)));
}

const plan::ModelSpec& HfModel::spec() const { return state_->spec; }
const std::string& HfModel::folder() const { return state_->folder; }
std::vector<std::string> HfModel::files() const {
  std::vector<std::string> names;
  for (const auto& file : state_->files) {
    names.push_back(std::filesystem::path(file->path()).filename());
  }
  return names;
}

absl::Status HfModel::ReadUnit(int unit, int64_t offset, std::span<float> out) const {
  const auto index = static_cast<size_t>(unit);
  const auto count = static_cast<int64_t>(out.size());
  if (unit < 0 || index >= state_->units.size() || offset < 0 ||
      offset > state_->units[index].count - count) {
    return OutOfRange("{}: unit {} has no elements {} to {}", state_->folder, unit, offset,
                      offset + count);
  }
  const UnitSpec& spec = state_->units[index];
  int64_t filled = offset;  // everything before it is written
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const TensorSpec& tensor = spec.tensors[i];
    const int64_t begin = std::max(offset, tensor.offset);
    const int64_t end = std::min(offset + count, tensor.offset + tensor.count());
    if (begin >= end) {
      continue;
    }
    std::fill(out.begin() + (filled - offset), out.begin() + (begin - offset), 0.0F);
    SHOAL_RETURN_IF_ERROR(state_->by_unit[index][i]->Read(
        tensor.stored_offset() + begin - tensor.offset,
        out.subspan(static_cast<size_t>(begin - offset), static_cast<size_t>(end - begin))));
    filled = end;
  }
  std::fill(out.begin() + (filled - offset), out.end(), 0.0F);
  return absl::OkStatus();
}

}  // namespace shoal::formats

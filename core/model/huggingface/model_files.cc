#include "core/model/huggingface/model_files.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "core/model/huggingface/safetensors.h"

namespace shoal::formats {
namespace {

constexpr int64_t kEndBytes = 1 * kMiB;  // read of a file's beginning and of its end

absl::StatusOr<ModelFile> ReadFingerprint(const std::string& folder, const std::string& name) {
  SHOAL_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(folder + "/" + name));
  std::vector<std::byte> first(
      static_cast<size_t>(std::min<int64_t>(kSafetensorsLengthBytes, file.size())));
  SHOAL_RETURN_IF_ERROR(file.Read(0, first));
  const absl::StatusOr<int64_t> head = SafetensorsHeadBytes(first, file.size());
  SHOAL_RETURN_IF_ERROR(Annotate(head.status(), file.path()));
  first.resize(static_cast<size_t>(std::min(std::max(kEndBytes, *head), file.size())));
  SHOAL_RETURN_IF_ERROR(file.Read(0, first));
  std::vector<std::byte> last(static_cast<size_t>(std::min(kEndBytes, file.size())));
  SHOAL_RETURN_IF_ERROR(file.Read(file.size() - std::ssize(last), last));
  const auto seed = static_cast<uint64_t>(file.size());
  return ModelFile{
      .name = name,
      .bytes = file.size(),
      .fingerprint = XXH3_64bits_withSeed(last.data(), last.size(),
                                          XXH3_64bits_withSeed(first.data(), first.size(), seed))};
}

}  // namespace

absl::StatusOr<std::vector<ModelFile>> ReadFiles(const std::string& folder) {
  SHOAL_ASSIGN_OR_RETURN(const auto model, HfModel::Open(folder));
  std::vector<ModelFile> files;
  for (const std::string& name : model->files()) {
    SHOAL_ASSIGN_OR_RETURN(files.emplace_back(), ReadFingerprint(folder, name));
  }
  return files;
}

absl::Status CheckFiles(const std::string& folder, std::span<const ModelFile> files) {
  for (const ModelFile& file : files) {
    if (file.name.empty() || std::filesystem::path(file.name).filename() != file.name ||
        file.name == "..") {
      return InvalidArgument("'{}' is not the name of a file of a model", file.name);
    }
    SHOAL_ASSIGN_OR_RETURN(const ModelFile here, ReadFingerprint(folder, file.name));
    if (here != file) {
      return FailedPrecondition(
          "{}/{} is another file than the job's of that name ({})", folder, file.name,
          here.bytes == file.bytes
              ? "of the same size"
              : fmt::format("{} bytes, the job's has {}", here.bytes, file.bytes));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HfModel>> OpenSame(const std::string& folder,
                                                  std::span<const ModelFile> files) {
  SHOAL_RETURN_IF_ERROR(CheckFiles(folder, files));
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<HfModel> model, HfModel::Open(folder));
  const std::vector<std::string> read = model->files();
  if (!std::ranges::equal(read, files, {}, {}, &ModelFile::name)) {
    return FailedPrecondition("{} is read from {}, the job's model from {}: keep those alone there",
                              folder, read.empty() ? "no file" : read.front(),
                              files.empty() ? "no file" : files.front().name);
  }
  return model;
}

}  // namespace shoal::formats

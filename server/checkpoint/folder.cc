// Which checkpoints a directory has.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "core/base/file.h"
#include "core/base/status.h"
#include "server/checkpoint/checkpoint.h"

namespace shoal::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

struct Folder {
  int64_t step = 0;
  std::string path;
  bool complete = false;
};

// The checkpoint that a folder is, complete ("step-00000050" with a manifest) or not; nullopt for
// other folders.
std::optional<Folder> FolderAt(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  Folder folder{.path = path.string()};
  const char* const name_end = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name_end, folder.step);
  if (error != std::errc() || folder.step < 0 || (end != name_end && *end != '.')) {
    return std::nullopt;
  }
  folder.complete = end == name_end && IsComplete(folder.path);
  return folder;
}

absl::StatusOr<std::vector<Folder>> Folders(const std::string& directory) {
  std::vector<Folder> folders;
  std::error_code error;
  if (!fs::exists(directory, error)) {
    return folders;
  }
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (auto folder = FolderAt(it->path()); folder.has_value() && it->is_directory(error)) {
      folders.push_back(*std::move(folder));
    }
  }
  if (error) {
    return ErrnoToStatus(error.value(), fmt::format("cannot list checkpoints in {}", directory));
  }
  std::ranges::sort(folders, {}, &Folder::step);
  return folders;
}

absl::StatusOr<std::vector<CheckpointInfo>> Checkpoints(const std::string& directory,
                                                        bool complete) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Folder> folders, Folders(directory));
  std::vector<CheckpointInfo> checkpoints;
  for (const Folder& folder : folders) {
    if (folder.complete != complete) {
      continue;
    }
    CheckpointInfo info{.step = folder.step, .path = folder.path};
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder.path, error)) {
      const auto size = entry.file_size(error);
      info.bytes += error ? 0 : static_cast<int64_t>(size);
    }
    checkpoints.push_back(std::move(info));
  }
  return checkpoints;
}

}  // namespace

bool IsComplete(const std::string& folder) {
  std::error_code error;
  return fs::is_regular_file(fmt::format("{}/{}", folder, kManifestFile), error);
}

std::string CheckpointPath(const std::string& directory, int64_t step) {
  return fmt::format("{}/{}{:08d}", directory, kPrefix, step);
}

absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(const std::string& directory) {
  return Checkpoints(directory, /*complete=*/true);
}

absl::StatusOr<std::vector<CheckpointInfo>> UnfinishedCheckpoints(const std::string& directory) {
  return Checkpoints(directory, /*complete=*/false);
}

absl::StatusOr<std::optional<CheckpointInfo>> NewestCheckpoint(const std::string& directory) {
  SHOAL_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> checkpoints, ListCheckpoints(directory));
  if (checkpoints.empty()) {
    return std::optional<CheckpointInfo>();
  }
  return std::optional<CheckpointInfo>(std::move(checkpoints.back()));
}

}  // namespace shoal::server

// The life of checkpoint folders: create, complete, list, prune.
#include <xxhash.h>

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

bool IsComplete(const std::string& folder) {
  std::error_code error;
  return fs::is_regular_file(fmt::format("{}/{}", folder, kManifestFile), error);
}

// Returns the step that a folder's name stands for.
std::optional<int64_t> StepOf(const std::string& name) {
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  int64_t step = 0;
  const auto [end, error] =
      std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() && step >= 0
             ? std::optional<int64_t>(step)
             : std::nullopt;
}

struct Folder {
  int64_t step = 0;
  std::string path;
  bool complete = false;
};

absl::StatusOr<std::vector<Folder>> Folders(const std::string& directory) {
  std::vector<Folder> folders;
  std::error_code error;
  if (!fs::exists(directory, error)) {
    return folders;
  }
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    if (const auto step = StepOf(it->path().filename().string()); step && it->is_directory(error)) {
      folders.push_back({.step = *step, .path = path, .complete = IsComplete(path)});
    }
  }
  if (error) {
    return ErrnoToStatus(error.value(), fmt::format("cannot list checkpoints in {}", directory));
  }
  std::sort(folders.begin(), folders.end(),
            [](const Folder& a, const Folder& b) { return a.step < b.step; });
  return folders;
}

// Removes the manifest first, so that a crash halfway leaves an incomplete checkpoint rather than a
// damaged one.
absl::Status RemoveFolder(const std::string& path) {
  std::error_code error;
  fs::remove(fmt::format("{}/{}", path, kManifestFile), error);
  fs::remove_all(path, error);
  if (error) {
    return ErrnoToStatus(error.value(), fmt::format("cannot remove {}", path));
  }
  return absl::OkStatus();
}

}  // namespace

std::string CheckpointPath(const std::string& directory, int64_t step) {
  return fmt::format("{}/{}{:08d}", directory, kPrefix, step);
}

absl::StatusOr<std::string> CreateCheckpointFolder(const std::string& directory, int64_t step) {
  std::string path = CheckpointPath(directory, step);
  if (IsComplete(path)) {
    return FailedPrecondition("{} is a complete checkpoint already", path);
  }
  SHOAL_RETURN_IF_ERROR(RemoveFolder(path));
  SHOAL_RETURN_IF_ERROR(CreateDirectories(path));
  return path;
}

absl::Status WriteManifest(const std::string& folder, const Manifest& manifest,
                           const std::string& job_yaml) {
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(fmt::format("{}/{}", folder, kJobFile), job_yaml));
  const std::string json = ManifestToJson(manifest, XXH3_64bits(job_yaml.data(), job_yaml.size()));
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(fmt::format("{}/{}", folder, kManifestFile), json));
  const std::string parent = fs::path(folder).parent_path().string();
  return SyncDirectory(parent.empty() ? "." : parent);
}

absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(const std::string& directory) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Folder> folders, Folders(directory));
  std::vector<CheckpointInfo> checkpoints;
  for (const Folder& folder : folders) {
    if (!folder.complete) {
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

absl::StatusOr<std::optional<CheckpointInfo>> NewestCheckpoint(const std::string& directory) {
  SHOAL_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> checkpoints, ListCheckpoints(directory));
  if (checkpoints.empty()) {
    return std::optional<CheckpointInfo>();
  }
  return std::optional<CheckpointInfo>(std::move(checkpoints.back()));
}

absl::Status PruneCheckpoints(const std::string& directory, int64_t keep) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Folder> folders, Folders(directory));
  const int64_t complete =
      std::count_if(folders.begin(), folders.end(), [](const Folder& f) { return f.complete; });
  int64_t surplus = complete - std::max<int64_t>(1, keep);
  int64_t complete_left = complete;
  for (const Folder& folder : folders) {
    if (folder.complete && surplus > 0) {
      SHOAL_RETURN_IF_ERROR(RemoveFolder(folder.path));
      --surplus;
    } else if (!folder.complete && complete_left > 0) {
      SHOAL_RETURN_IF_ERROR(
          RemoveFolder(folder.path));  // a newer complete one exists: nobody will finish this one
    }
    complete_left -= folder.complete ? 1 : 0;
  }
  return absl::OkStatus();
}

}  // namespace shoal::server

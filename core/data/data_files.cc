#include "core/data/data_files.h"

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>

#include "core/base/status.h"

namespace shoal::worker {
namespace {

namespace fs = std::filesystem;

// Without what says that it is packed.
std::string_view Unpacked(std::string_view name) {
  for (const std::string_view packed : {".gz", ".zst"}) {
    if (name.ends_with(packed)) {
      return name.substr(0, name.size() - packed.size());
    }
  }
  return name;
}

bool IsSampleName(std::string_view name) {
  name = Unpacked(name);
  return name.ends_with(".jsonl") || name.ends_with(".json");
}

absl::StatusOr<std::vector<std::string>> FilesOfFolder(const std::string& folder, bool documents) {
  std::error_code error;
  std::vector<std::string> files;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool wanted = IsSampleName(name) || (documents && IsTextName(name));
    if (wanted && !name.starts_with('.') && !entry->is_directory(error)) {
      files.push_back(entry->path().string());
    }
  }
  if (error) {
    return ErrnoToStatus(error.value(), fmt::format("cannot read folder {}", folder));
  }
  if (files.empty()) {
    return NotFound("{}: no file in this folder ends with {} (or these and .gz or .zst)", folder,
                    documents ? ".jsonl, .json or .txt" : ".jsonl or .json");
  }
  std::ranges::sort(files);
  return files;
}

absl::StatusOr<std::vector<std::string>> FilesOfPattern(const std::string& pattern) {
  glob_t found = {};
  const int failed = glob(pattern.c_str(), GLOB_ERR, nullptr, &found);
  std::vector<std::string> files;
  std::error_code error;
  for (size_t i = 0; failed == 0 && i < found.gl_pathc; ++i) {
    if (!fs::is_directory(found.gl_pathv[i], error)) {
      files.emplace_back(found.gl_pathv[i]);
    }
  }
  globfree(&found);
  if (failed != 0 && failed != GLOB_NOMATCH) {
    return PermissionDenied("{}: a folder of this pattern cannot be read", pattern);
  }
  if (files.empty()) {
    return NotFound("{}: no file has such a name", pattern);
  }
  return files;
}

}  // namespace

bool IsTextName(std::string_view path) { return Unpacked(path).ends_with(".txt"); }

absl::StatusOr<std::vector<std::string>> ListDataFiles(const std::string& input, bool documents) {
  std::error_code error;
  std::vector<std::string> files = {input};
  if (fs::is_directory(input, error)) {
    SHOAL_ASSIGN_OR_RETURN(files, FilesOfFolder(input, documents));
  } else if (!fs::exists(input, error) && input.find_first_of("*?[") != std::string::npos) {
    SHOAL_ASSIGN_OR_RETURN(files, FilesOfPattern(input));
  }
  for (const std::string& file : files) {
    if (access(file.c_str(), R_OK) != 0) {
      return ErrnoToStatus(errno, fmt::format("cannot open {}", file));
    }
  }
  return files;
}

absl::StatusOr<std::string> VersionOf(const std::vector<std::string>& files) {
  std::string version;
  for (const std::string& file : files) {
    struct stat info {};
    if (stat(file.c_str(), &info) != 0) {
      return ErrnoToStatus(errno, fmt::format("cannot open {}", file));
    }
    std::error_code error;
    version += fmt::format("|{}|{}|{}.{:09}",
                           std::filesystem::absolute(file, error).lexically_normal().string(),
                           info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  }
  return version;
}

}  // namespace shoal::worker

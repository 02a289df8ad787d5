#include "server/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/file.h"
#include "core/base/json/json.h"
#include "core/base/logging.h"
#include "core/base/random.h"
#include "core/base/status.h"

namespace shoal::server {
namespace {

namespace fs = std::filesystem;

struct Owner {
  JobLife of;
  std::string run;
  int64_t term = 0;
};

std::string OwnerFile(const std::string& directory) { return directory + "/owner"; }

// Nobody's, of term 0, where there is no such file.
absl::StatusOr<Owner> ReadOwner(const std::string& directory) {
  const std::string path = OwnerFile(directory);
  const auto text = ReadFile(path, 4096);
  if (absl::IsNotFound(text.status())) {
    return Owner();
  }
  SHOAL_RETURN_IF_ERROR(text.status());
  SHOAL_ASSIGN_OR_RETURN(const Json document, ParseJson(*text, path));
  try {
    return Owner{
        .of = {.job = document.value("job", ""), .term = document.value("life", int64_t{0})},
        .run = document.at("run").get<std::string>(),
        .term = document.at("term").get<int64_t>()};
  } catch (const Json::exception& error) {
    return DataLoss("{}: malformed ({}): remove it if no run uses this folder", path, error.what());
  }
}

absl::Status CheckNewest(const std::string& directory, const Owner& owner, const JobLife& of) {
  return !of.job.empty() && owner.of.job == of.job && owner.of.term > of.term
             ? Aborted(
                   "{}: run {} has this folder, of {} in term {} of the coordinator, and this is "
                   "term {}",
                   directory, owner.run, of.job, owner.of.term, of.term)
             : absl::OkStatus();
}

// Of two runs that take a directory at once, one comes after the other.
absl::StatusOr<UniqueFd> LockFolder(const std::string& directory) {
  UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) {
    const int error_number = errno;
    return ErrnoToStatus(error_number, fmt::format("cannot open {}", directory));
  }
  flock(fd.get(), LOCK_EX);  // where the file system has no locks, the file is read again anyway
  return fd;
}

// Removes the manifest first, so that a crash halfway leaves an incomplete checkpoint rather than a
// damaged one.
absl::Status RemoveFolder(const std::string& path) {
  std::error_code error;
  fs::remove(fmt::format("{}/{}", path, kManifestFile), error);
  fs::remove_all(path, error);
  return error ? ErrnoToStatus(error.value(), fmt::format("cannot remove {}", path))
               : absl::OkStatus();
}

// For the room that they take: who would write into one has lost the directory.
void RemoveUnfinished(const std::string& directory) {
  const auto unfinished = UnfinishedCheckpoints(directory);
  if (!unfinished.ok()) {
    LogWarning("{}", Message(unfinished.status()));
    return;
  }
  for (const CheckpointInfo& checkpoint : *unfinished) {
    if (const absl::Status removed = RemoveFolder(checkpoint.path); !removed.ok()) {
      LogWarning("an unfinished checkpoint stays: {}", Message(removed));
    }
  }
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::string directory, JobLife of, std::string run,
                                         int64_t term)
    : directory_(std::move(directory)), of_(std::move(of)), run_(std::move(run)), term_(term) {}

absl::StatusOr<CheckpointDirectory> CheckpointDirectory::Take(const std::string& directory,
                                                              const JobLife& of) {
  SHOAL_RETURN_IF_ERROR(CreateDirectories(directory));
  SHOAL_ASSIGN_OR_RETURN(const UniqueFd lock, LockFolder(directory));
  SHOAL_ASSIGN_OR_RETURN(const Owner before, ReadOwner(directory));
  SHOAL_RETURN_IF_ERROR(server::CheckNewest(directory, before, of));
  RemoveUnfinished(directory);  // first, as a full disk has no room for the owner either
  CheckpointDirectory taken(directory, of, SecureToken().substr(0, 12), before.term + 1);
  const Json owner = {
      {"job", of.job}, {"life", of.term}, {"run", taken.run_}, {"term", taken.term_}};
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(OwnerFile(directory), owner.dump() + "\n"));
  return taken;
}

absl::Status CheckpointDirectory::CheckNewest(const std::string& directory, const JobLife& of) {
  SHOAL_ASSIGN_OR_RETURN(const Owner owner, ReadOwner(directory));
  return server::CheckNewest(directory, owner, of);
}

absl::Status CheckpointDirectory::CheckOwned() const {
  SHOAL_ASSIGN_OR_RETURN(const Owner owner, ReadOwner(directory_));
  if (owner.run == run_) {
    return absl::OkStatus();
  }
  const std::string what =
      fmt::format("{}: run {} (term {}) has taken this folder from run {} (term {})", directory_,
                  owner.run, owner.term, run_, term_);
  return !of_.job.empty() && owner.of.job == of_.job ? Aborted("{}", what)
                                                     : AlreadyExists("{}", what);
}

std::string CheckpointDirectory::UnfinishedPath(int64_t step) const {
  return fmt::format("{}.{}", CheckpointPath(directory_, step), run_);
}

absl::StatusOr<std::string> CheckpointDirectory::Begin(int64_t step) {
  SHOAL_RETURN_IF_ERROR(CheckOwned());
  if (const std::string complete = CheckpointPath(directory_, step); IsComplete(complete)) {
    return FailedPrecondition("{} is a complete checkpoint already", complete);
  }
  SHOAL_RETURN_IF_ERROR(Discard(step));
  std::string path = UnfinishedPath(step);
  SHOAL_RETURN_IF_ERROR(CreateDirectories(path));
  return path;
}

absl::StatusOr<std::string> CheckpointDirectory::Complete(const Manifest& manifest,
                                                          const std::string& job_yaml) {
  const std::string unfinished = UnfinishedPath(manifest.step);
  SHOAL_RETURN_IF_ERROR(CheckOwned());  // else it is gone
  SHOAL_RETURN_IF_ERROR(CheckShards(unfinished, manifest));
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(fmt::format("{}/{}", unfinished, kJobFile), job_yaml));
  const std::string json = ManifestToJson(manifest, XXH3_64bits(job_yaml.data(), job_yaml.size()));
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(fmt::format("{}/{}", unfinished, kManifestFile), json));
  SHOAL_RETURN_IF_ERROR(CheckOwned());
  std::string path = CheckpointPath(directory_, manifest.step);
  std::error_code error;
  if (!IsComplete(path)) {
    fs::remove_all(path, error);  // of a release that wrote in place
  }
  fs::rename(unfinished, path, error);
  if (error) {
    return ErrnoToStatus(error.value(), fmt::format("cannot rename {} to {}", unfinished, path));
  }
  SHOAL_RETURN_IF_ERROR(SyncDirectory(directory_));
  return path;
}

absl::Status CheckpointDirectory::Discard(int64_t step) {
  return RemoveFolder(UnfinishedPath(step));
}

absl::Status CheckpointDirectory::Prune(int64_t keep, const std::set<int64_t>& steps) {
  SHOAL_RETURN_IF_ERROR(CheckOwned());
  SHOAL_ASSIGN_OR_RETURN(const auto complete, ListCheckpoints(directory_));
  const auto surplus = std::ssize(complete) - std::max<int64_t>(1, keep);
  for (int64_t i = 0; i < surplus; ++i) {
    if (steps.contains(complete[static_cast<size_t>(i)].step)) {
      continue;
    }
    SHOAL_RETURN_IF_ERROR(RemoveFolder(complete[static_cast<size_t>(i)].path));
  }
  return absl::OkStatus();
}

}  // namespace shoal::server

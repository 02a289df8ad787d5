#include "cli/run/earlier_run.h"

#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/base/file.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "server/checkpoint/checkpoint.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExported = "huggingface";
constexpr std::string_view kRendering = "rendering.json";

// The step after which checkpoints were set aside. Written last and removed first: without it some
// are not aside yet, or not any more, and no other run has begun.
std::string StepFile(const std::string& directory) { return directory + "/earlier-run/after"; }
std::string Aside(const std::string& directory) { return directory + "/earlier-run"; }
// Renamed to this first, so that no half-removed folder is taken for one to bring back.
std::string Unwanted(const std::string& directory) { return directory + "/earlier-run.removed"; }

// What its samples were made with.
std::string Rendering(const std::string& directory) {
  return fmt::format("{}/data/{}", directory, kRendering);
}
std::string RenderingAside(const std::string& directory) {
  return fmt::format("{}/{}", Aside(directory), kRendering);
}

absl::Status Rename(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  return error ? ErrnoToStatus(error.value(), fmt::format("cannot rename {} to {}", from, to))
               : absl::OkStatus();
}

absl::Status RemoveAside(const std::string& directory) {
  std::error_code error;
  if (fs::exists(Aside(directory), error)) {
    SHOAL_RETURN_IF_ERROR(Rename(Aside(directory), Unwanted(directory)));
  }
  fs::remove_all(Unwanted(directory), error);
  return error ? ErrnoToStatus(error.value(), "cannot remove " + Unwanted(directory))
               : absl::OkStatus();
}

absl::Status BringBack(const std::string& directory) {
  std::error_code error;
  if (fs::exists(StepFile(directory), error)) {
    fs::remove(Rendering(directory), error);  // it is the other run's
  }
  fs::remove(StepFile(directory), error);
  if (error) {
    return ErrnoToStatus(error.value(), "cannot remove " + StepFile(directory));
  }
  for (const auto& entry : fs::directory_iterator(Aside(directory), error)) {
    if (entry.is_directory()) {
      const std::string target = directory + "/" + entry.path().filename().string();
      std::error_code ignored;
      fs::remove_all(target, ignored);  // the other run did not complete it
      SHOAL_RETURN_IF_ERROR(Rename(entry.path().string(), target));
    }
  }
  if (fs::exists(RenderingAside(directory), error)) {
    SHOAL_RETURN_IF_ERROR(Rename(RenderingAside(directory), Rendering(directory)));
  }
  return RemoveAside(directory);
}

// Whether the run that took the place has completed a checkpoint.
absl::StatusOr<bool> WasReplaced(const std::string& directory) {
  std::error_code error;
  if (!fs::exists(StepFile(directory), error)) {
    return false;
  }
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ReadFile(StepFile(directory), 64));
  int64_t after = -1;
  std::from_chars(text.data(), text.data() + text.size(), after);
  SHOAL_ASSIGN_OR_RETURN(const auto newest, server::NewestCheckpoint(directory));
  return newest.has_value() && newest->step > after;
}

}  // namespace

absl::Status EarlierRun::Recover(const std::string& directory) {
  std::error_code error;
  fs::remove_all(Unwanted(directory), error);
  if (!fs::exists(Aside(directory), error)) {
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(const bool replaced, WasReplaced(directory));
  return replaced ? RemoveAside(directory) : BringBack(directory);
}

absl::StatusOr<EarlierRun> EarlierRun::SetAside(const std::string& directory, int64_t step) {
  SHOAL_RETURN_IF_ERROR(CreateDirectories(Aside(directory)));
  EarlierRun aside(directory);
  SHOAL_ASSIGN_OR_RETURN(const auto checkpoints, server::ListCheckpoints(directory));
  for (const server::CheckpointInfo& checkpoint : checkpoints) {
    if (checkpoint.step > step) {
      const std::string name = fs::path(checkpoint.path).filename().string();
      SHOAL_RETURN_IF_ERROR(Rename(checkpoint.path, Aside(directory) + "/" + name));
    }
  }
  const std::string exported = fmt::format("{}/{}", directory, kExported);
  std::error_code error;
  if (step < 0 && fs::exists(exported, error)) {
    SHOAL_RETURN_IF_ERROR(Rename(exported, fmt::format("{}/{}", Aside(directory), kExported)));
  }
  if (fs::exists(Rendering(directory), error)) {
    SHOAL_RETURN_IF_ERROR(Rename(Rendering(directory), RenderingAside(directory)));
  }
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(StepFile(directory), fmt::format("{}\n", step)));
  return aside;
}

EarlierRun::EarlierRun(EarlierRun&& other) noexcept
    : directory_(std::exchange(other.directory_, "")) {}

EarlierRun::~EarlierRun() {
  if (directory_.empty()) {
    return;
  }
  if (const absl::Status back = Recover(directory_); !back.ok()) {
    LogWarning("the earlier run stays in {}: {}", Aside(directory_), Message(back));
  }
}

absl::Status EarlierRun::Remove() { return RemoveAside(std::exchange(directory_, "")); }

}  // namespace shoal::cli

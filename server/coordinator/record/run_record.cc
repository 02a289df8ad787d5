#include "server/coordinator/record/run_record.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <vector>

#include "absl/strings/str_split.h"
#include "core/base/json/json.h"
#include "core/base/status.h"

namespace shoal::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEarlier = "record-";

// TensorBoard's names of what a step's line has.
constexpr std::pair<const char*, const char*> kScalars[] = {
    {"loss/mean", "loss"},
    {"grad_norm", "grad_norm"},
    {"lr", "learning_rate"},
    {"throughput/tokens_per_second", "tokens_per_second"},
    {"time/step_seconds", "step_seconds"},
    {"mfu", "mfu"},
    {"idle_share/measured", "idle_share"},
    {"idle_share/predicted", "predicted_idle_share"}};
// What a line of pairs has more, a step's or a validation's; TensorBoard has them by these names.
constexpr const char* kOfPairs[] = {"rewards/chosen",  "rewards/rejected", "rewards/accuracies",
                                    "rewards/margins", "logps/chosen",     "logps/rejected"};
constexpr std::string_view kValidation = "validation/";  // before its scalars

absl::Status RemoveOldRecords(const std::string& directory) {
  std::vector<std::string> earlier;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with(kEarlier)) {
      earlier.push_back(it->path().string());
    }
  }
  std::ranges::sort(earlier, std::greater());
  for (size_t i = RunRecord::kKept; i < earlier.size() && !error; ++i) {
    fs::remove_all(earlier[i], error);
  }
  return error ? ErrnoToStatus(error.value(), "cannot remove old records in " + directory)
               : absl::OkStatus();
}

absl::Status MakeRoom(const std::string& directory, absl::Time now) {
  const std::string folder = RecordFolder(directory);
  std::error_code error;
  if (!fs::exists(fmt::format("{}/{}", folder, kRecordFile), error)) {
    return absl::OkStatus();  // nothing there, or a try of this run that failed
  }
  const std::string earlier =
      fmt::format("{}/{}{}", directory, kEarlier,
                  absl::FormatTime("%Y%m%dT%H%M%E3SZ", now, absl::UTCTimeZone()));
  fs::rename(folder, earlier, error);
  if (error) {
    return ErrnoToStatus(error.value(), fmt::format("cannot rename {} to {}", folder, earlier));
  }
  return RemoveOldRecords(directory);
}

// A process that was killed may have left half a line.
absl::Status CutHalfLine(int fd, const std::string& path) {
  off_t end = lseek(fd, 0, SEEK_END);
  char last = '\n';
  while (end > 0 && pread(fd, &last, 1, end - 1) == 1 && last != '\n') {
    --end;
  }
  return ftruncate(fd, end) == 0
             ? absl::OkStatus()
             : ErrnoToStatus(errno, fmt::format("cannot cut the last line of {}", path));
}

}  // namespace

std::string RecordFolder(const std::string& checkpoint_directory) {
  return checkpoint_directory + "/record";
}

absl::StatusOr<int64_t> LastEventNumber(const std::string& checkpoint_directory) {
  constexpr off_t kTail = 1 << 20;  // a thousand steps
  const std::string path = fmt::format("{}/{}", RecordFolder(checkpoint_directory), kRecordFile);
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    const int error_number = errno;
    return error_number == ENOENT
               ? absl::StatusOr<int64_t>(0)
               : ErrnoToStatus(error_number, fmt::format("cannot read {}", path));
  }
  const off_t end = lseek(fd.get(), 0, SEEK_END);
  std::string tail(static_cast<size_t>(std::min(end, kTail)), '\0');
  const ssize_t read = pread(fd.get(), tail.data(), tail.size(), end - std::min(end, kTail));
  if (read < 0) {
    const int error_number = errno;
    return ErrnoToStatus(error_number, fmt::format("cannot read {}", path));
  }
  tail.resize(static_cast<size_t>(read));
  tail.resize(tail.rfind('\n') == std::string::npos ? 0 : tail.rfind('\n'));
  const std::vector<std::string> lines = absl::StrSplit(tail, '\n');
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const Json json = Json::parse(*line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("number")) {
      return json["number"].get<int64_t>();
    }
  }
  return 0;
}

absl::StatusOr<RunRecord> RunRecord::Open(const std::string& checkpoint_directory, bool resume,
                                          const std::string& job_yaml, absl::Time now,
                                          bool tensorboard) {
  if (!resume) {
    SHOAL_RETURN_IF_ERROR(MakeRoom(checkpoint_directory, now));
  }
  const std::string folder = RecordFolder(checkpoint_directory);
  SHOAL_RETURN_IF_ERROR(CreateDirectories(folder));
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(folder + "/job.yaml", job_yaml));
  const std::string path = fmt::format("{}/{}", folder, kRecordFile);
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    const int error_number = errno;
    return ErrnoToStatus(error_number, fmt::format("cannot open {}", path));
  }
  SHOAL_RETURN_IF_ERROR(CutHalfLine(fd.get(), path));
  return RunRecord(path, std::move(fd), tensorboard);
}

absl::Status RunRecord::AppendToTensorBoard(std::string_view lines) {
  for (const absl::string_view text :
       absl::StrSplit(absl::string_view(lines.data(), lines.size()), '\n', absl::SkipEmpty())) {
    const Json line = Json::parse(std::string(text));
    if (line["event"] != "step" && line["event"] != "validation") {
      continue;
    }
    const int64_t step = line["step"];
    const double time = line["time"];
    if (!events_.has_value()) {
      const std::string folder = fs::path(path_).parent_path().string();
      SHOAL_ASSIGN_OR_RETURN(events_, TensorBoardLog::Open(folder, step, time));
    }
    std::vector<std::pair<std::string, double>> scalars;
    const auto add = [&scalars](std::string tag, const Json& value) {
      if (value.is_number()) {  // one that is not finite is null
        scalars.emplace_back(std::move(tag), value.get<double>());
      }
    };
    const bool validation = line["event"] == "validation";
    const std::string before(validation ? kValidation : "");
    if (validation) {
      add(before + "loss", line.value("loss", Json()));
    } else {
      for (const auto& [tag, key] : kScalars) {
        add(tag, line.value(key, Json()));
      }
    }
    for (const char* key : kOfPairs) {
      add(before + key, line.value(key, Json()));
    }
    const Json shares = line.value("time_shares", Json::object());  // outlives its items()
    for (const auto& [kind, share] : shares.items()) {
      add("time_share/" + kind, share);
    }
    SHOAL_RETURN_IF_ERROR(events_->Append(step, time, scalars));
  }
  return absl::OkStatus();
}

absl::Status RunRecord::Append(std::string_view lines) {
  for (std::string_view left = lines; !left.empty();) {
    const ssize_t written = write(fd_.get(), left.data(), left.size());
    if (written < 0 && errno != EINTR) {
      const int error_number = errno;
      // A line that is there in part would hide the next.
      CutHalfLine(fd_.get(), path_).IgnoreError();
      return ErrnoToStatus(error_number, fmt::format("cannot write {}", path_));
    }
    left.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  return tensorboard_ ? AppendToTensorBoard(lines) : absl::OkStatus();
}

}  // namespace shoal::server

#include "server/service/checkpoint_task.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"

namespace shoal::server {
namespace {

constexpr absl::Duration kWaitNotice = absl::Seconds(10);
// Also of partitions that come later.
constexpr size_t kAll = std::numeric_limits<size_t>::max();

std::vector<size_t> OrderOf(const JobStore& store) {
  std::vector<size_t> order(store.held().size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_partition(order.begin(), order.end(),
                        [&](size_t p) { return !store.held()[p].partition->spec().frozen; });
  return order;
}

std::vector<size_t> PlacesIn(const std::vector<size_t>& order) {
  std::vector<size_t> places(order.size());
  for (size_t place = 0; place < order.size(); ++place) {
    places[order[place]] = place;
  }
  return places;
}

absl::Status Leaving() { return Cancelled("this server is going"); }

}  // namespace

CheckpointTask::CheckpointTask(const JobStore* store, int server, std::string directory)
    : store_(store),
      server_(server),
      version_(store->version()),
      order_(OrderOf(*store)),
      places_(PlacesIn(order_)),
      directory_(std::move(directory)) {
  thread_ = std::thread([this] { Run(); });
}

CheckpointTask::~CheckpointTask() {
  Cancel();
  thread_.join();
}

void CheckpointTask::Run() {
  absl::StatusOr<ShardEntry> result = Write();
  if (result.ok()) {
    LogInfo("step {}: checkpoint shard {}/{} is written, {} bytes", version_, directory_,
            result->file, result->bytes);
  } else {
    LogError("step {}: checkpoint in {} failed: {}", version_, directory_,
             Message(result.status()));
  }
  absl::MutexLock lock(&mutex_);
  result_ = std::move(result);
  written_ = kAll;
  done_ = true;
}

absl::StatusOr<ShardEntry> CheckpointTask::Write() {
  std::vector<plan::PartitionSpec> specs;
  for (const size_t p : order_) {
    specs.push_back(store_->held()[p].partition->spec());
  }
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<ShardWriter> writer,
                         ShardWriter::Create(directory_, server_, version_, specs));
  std::vector<float> scratch[kSections];  // if the host cannot access the state itself
  for (size_t place = 0; place < specs.size(); ++place) {
    std::span<const float> arrays[kSections];
    for (int section = 0; section <= specs[place].moment_arrays(); ++section) {
      SHOAL_ASSIGN_OR_RETURN(
          arrays[section],
          store_->Read(order_[place], static_cast<StateArray>(section), scratch[section]));
    }
    SHOAL_RETURN_IF_ERROR(writer->Add(arrays[0], arrays[1], arrays[2]));
    absl::MutexLock lock(&mutex_);
    written_ = place + 1;
    if (cancelled_ || given_up_) {
      return cancelled_ ? Leaving() : Cancelled("the coordinator was started again");
    }
  }
  return writer->Finish();
}

bool CheckpointTask::IsWritten(size_t partition) const {
  return written_ == kAll || (partition < places_.size() && places_[partition] < written_);
}

absl::Status CheckpointTask::WaitUntilWritten(size_t partition) {
  absl::MutexLock lock(&mutex_);
  const auto written = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return IsWritten(partition) || cancelled_;
  };
  // The writer always ends, but a disk may take long: say so.
  while (!AwaitFor(&mutex_, absl::Condition(&written), kWaitNotice)) {
    LogWarning("step {}: a commit waits for partition {} of {} to be written to {}; slow disk?",
               version_ + 1, partition, order_.size(), directory_);
  }
  return IsWritten(partition) ? absl::OkStatus() : Leaving();
}

bool CheckpointTask::AllWritten() const {
  absl::MutexLock lock(&mutex_);
  return written_ >= order_.size();
}

bool CheckpointTask::Done() const {
  absl::MutexLock lock(&mutex_);
  return done_;
}

bool CheckpointTask::Kept() const {
  absl::MutexLock lock(&mutex_);
  std::error_code error;
  return done_ && result_.ok() &&
         std::filesystem::exists(fmt::format("{}/{}", directory_, result_->file), error);
}

absl::StatusOr<ShardEntry> CheckpointTask::Wait(absl::Duration timeout) const {
  absl::MutexLock lock(&mutex_);
  const auto over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return done_ || cancelled_; };
  if (!AwaitFor(&mutex_, absl::Condition(&over), timeout)) {
    return DeadlineExceeded("the checkpoint of step {} in {} is not written after {}", version_,
                            directory_, absl::FormatDuration(timeout));
  }
  return done_ ? result_ : Leaving();
}

void CheckpointTask::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
}

void CheckpointTask::GiveUp() {
  absl::MutexLock lock(&mutex_);
  given_up_ = true;
}

bool CheckpointTask::given_up() const {
  absl::MutexLock lock(&mutex_);
  return given_up_;
}

}  // namespace shoal::server

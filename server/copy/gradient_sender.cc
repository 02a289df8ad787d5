#include "server/copy/gradient_sender.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::server {

absl::StatusOr<proto::TakeGradientRequest> NextPiece(const plan::PartitionSpec& partition,
                                                     int64_t offset,
                                                     const proto::TakeGradientRequest& of,
                                                     const GradientReader& read) {
  proto::ReadStateRequest wanted;
  wanted.set_job_id(of.job_id());
  wanted.set_run(of.run());
  wanted.set_version(of.step() - 1);
  wanted.set_attempt(of.attempt());
  wanted.set_partition(partition.id);
  wanted.set_array(proto::ReadStateRequest::ARRAY_GRADIENT);
  wanted.set_offset(offset);
  wanted.set_count(std::min(kMostStateElements, partition.trained() - offset));
  SHOAL_ASSIGN_OR_RETURN(proto::ReadStateReply read_here, read(wanted));
  proto::TakeGradientRequest piece = of;
  piece.set_partition(partition.id);
  piece.set_offset(offset);
  piece.set_hash(read_here.hash());
  piece.set_elements(std::move(*read_here.mutable_elements()));
  return piece;
}

absl::StatusOr<std::vector<float>> ElementsOf(const proto::TakeGradientRequest& piece) {
  const std::string& bytes = piece.elements();
  std::vector<float> elements(bytes.size() / sizeof(float));
  std::memcpy(elements.data(), bytes.data(), elements.size() * sizeof(float));
  if (elements.size() * sizeof(float) != bytes.size() ||
      !CheckElements(elements, piece.hash()).ok()) {
    return DataLoss("the gradient of partition {} has come otherwise than it was sent",
                    piece.partition());
  }
  return elements;
}

GradientSender::GradientSender(const Options& options, GradientReader read,
                               std::function<GradientTaker(const std::string& address)> connect)
    : options_(options), read_(std::move(read)), connect_(std::move(connect)) {
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this] { Run(); });
  }
}

GradientSender::~GradientSender() {
  {
    absl::MutexLock lock(&mutex_);
    open_ = false;
    stopping_ = true;
    for (const auto& [address, backup] : backups_) {
      Cancel(backup);
    }
  }
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void GradientSender::Begin(const proto::BeginAttemptRequest& request) {
  absl::MutexLock lock(&mutex_);
  open_ = true;
  step_ = request.step();
  attempt_ = request.attempt();
  tasks_.clear();
  addresses_.clear();
  if (request.backups().empty()) {  // as for a validation: the next has those of before
    return;
  }
  std::map<std::string, Backup> before = std::exchange(backups_, {});
  for (const proto::BackupPlace& place : request.backups()) {
    Backup& backup = backups_[place.address()];
    if (auto kept = before.extract(place.address())) {
      backup = std::move(kept.mapped());
    }
    backup.failed = false;
    for (const int partition : place.partitions()) {
      addresses_[partition].push_back(place.address());
    }
  }
  for (const auto& [address, backup] : before) {
    Cancel(backup);
  }
}

void GradientSender::Add(const plan::PartitionSpec& partition, int64_t step, int64_t attempt) {
  proto::TakeGradientRequest of;
  of.set_job_id(options_.job_id);
  of.set_run(options_.run);
  of.set_step(step);
  of.set_attempt(attempt);
  absl::MutexLock lock(&mutex_);
  const auto found = addresses_.find(partition.id);
  if (!IsOpen(step, attempt) || found == addresses_.end()) {
    return;
  }
  for (const std::string& address : found->second) {
    if (!backups_[address].failed) {
      tasks_.push_back({partition, address, of});
    }
  }
}

void GradientSender::End() {
  absl::MutexLock lock(&mutex_);
  open_ = false;
  tasks_.clear();
}

void GradientSender::Cancel(const Backup& backup) {
  if (backup.taker.cancel) {
    backup.taker.cancel();
  }
}

void GradientSender::Run() {
  while (true) {
    Task task;
    {
      absl::MutexLock lock(&mutex_);
      const auto work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || NextTask() != tasks_.end();
      };
      mutex_.Await(absl::Condition(&work));
      if (stopping_) {
        return;
      }
      const auto next = NextTask();
      task = std::move(*next);
      tasks_.erase(next);
      backups_[task.address].busy = true;
    }
    Finish(task, Send(task));
  }
}

std::deque<GradientSender::Task>::iterator GradientSender::NextTask() {
  return std::find_if(tasks_.begin(), tasks_.end(),
                      [this](const Task& task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                        return !backups_[task.address].busy;
                      });
}

void GradientSender::Finish(const Task& task, const absl::Status& sent) {
  absl::MutexLock lock(&mutex_);
  const auto found = backups_.find(task.address);
  if (found == backups_.end()) {  // it backs nothing up any more
    return;
  }
  found->second.busy = false;
  if (sent.ok() || !IsOpen(task.of.step(), task.of.attempt())) {
    return;
  }
  LogDebug("gradients from partition {} on stay to be fetched by {}: {}", task.partition.id,
           task.address, Message(sent));
  found->second.failed = true;
  std::erase_if(tasks_, [&](const Task& other) { return other.address == task.address; });
}

absl::Status GradientSender::Send(const Task& task) {
  for (int64_t offset = 0; offset < task.partition.trained(); offset += kMostStateElements) {
    GradientTaker taker;
    {
      absl::MutexLock lock(&mutex_);
      if (!IsOpen(task.of.step(), task.of.attempt())) {
        return Cancelled("the attempt is over");
      }
      GradientTaker& kept = backups_[task.address].taker;
      kept = kept.take ? kept : connect_(task.address);
      taker = kept;
    }
    SHOAL_ASSIGN_OR_RETURN(const proto::TakeGradientRequest piece,
                           NextPiece(task.partition, offset, task.of, read_));
    SHOAL_ASSIGN_OR_RETURN(const proto::TakeGradientReply reply, taker.take(piece));
    if (reply.late()) {
      return Cancelled("it comes late");
    }
  }
  return absl::OkStatus();
}

}  // namespace shoal::server

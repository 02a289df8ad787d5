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
  backups_.clear();
  std::map<std::string, GradientTaker> before = std::exchange(takers_, {});
  for (const proto::BackupPlace& place : request.backups()) {
    takers_[place.address()] = std::move(before[place.address()]);
    for (const int partition : place.partitions()) {
      backups_[partition].push_back(place.address());
    }
  }
}

void GradientSender::Add(const plan::PartitionSpec& partition, int64_t step, int64_t attempt) {
  proto::TakeGradientRequest of;
  of.set_job_id(options_.job_id);
  of.set_run(options_.run);
  of.set_step(step);
  of.set_attempt(attempt);
  absl::MutexLock lock(&mutex_);
  const auto found = backups_.find(partition.id);
  if (!IsOpen(step, attempt) || found == backups_.end()) {
    return;
  }
  for (const std::string& address : found->second) {
    tasks_.push_back({partition, address, of});
  }
}

void GradientSender::End() {
  absl::MutexLock lock(&mutex_);
  open_ = false;
  tasks_.clear();
}

void GradientSender::Run() {
  while (true) {
    Task task;
    {
      absl::MutexLock lock(&mutex_);
      const auto work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !tasks_.empty();
      };
      mutex_.Await(absl::Condition(&work));
      if (stopping_) {
        return;
      }
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    if (const absl::Status sent = Send(task); !sent.ok()) {
      LogDebug("the gradient of partition {} stays to be fetched by {}: {}", task.partition.id,
               task.address, Message(sent));
    }
  }
}

absl::Status GradientSender::Send(const Task& task) {
  for (int64_t offset = 0; offset < task.partition.trained(); offset += kMostStateElements) {
    GradientTaker taker;
    {
      absl::MutexLock lock(&mutex_);
      if (!IsOpen(task.of.step(), task.of.attempt())) {
        return Cancelled("the attempt is over");
      }
      GradientTaker& kept = takers_[task.address];
      kept = kept ? kept : connect_(task.address);
      taker = kept;
    }
    SHOAL_ASSIGN_OR_RETURN(const proto::TakeGradientRequest piece,
                           NextPiece(task.partition, offset, task.of, read_));
    SHOAL_ASSIGN_OR_RETURN(const proto::TakeGradientReply reply, taker(piece));
    if (reply.late()) {
      return Cancelled("it comes late");
    }
  }
  return absl::OkStatus();
}

}  // namespace shoal::server

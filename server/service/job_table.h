// Which jobs a parameter server holds, by id, and which one a call is for. Thread-safe; waits for
// nothing. A Job has request() and reply(), of its Configure, and Fence(incarnation).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/base/status.h"
#include "core/job/job_id.h"
#include "google/protobuf/util/message_differencer.h"
#include "proto/server.pb.h"

namespace shoal::server {

template <typename Job>
class JobTable {
 public:
  using Jobs = std::map<std::string, std::shared_ptr<Job>>;

  explicit JobTable(int64_t max_jobs) : max_jobs_(max_jobs) {}

  Jobs all() const {
    absl::MutexLock lock(&mutex_);
    return jobs_;
  }

  absl::StatusOr<std::shared_ptr<Job>> Find(const std::string& job_id) const;

  // An earlier run of that job, which the coordinator took to be lost when another process had this
  // address; else null.
  std::shared_ptr<Job> EarlierRun(const proto::ConfigureRequest& request) const;
  // The job whose reply answers a Configure that is repeated. Null: it is to be loaded, one at a
  // time, and then Loaded or NotLoaded to be called. `request` is without its term: a later life's
  // is the same job.
  absl::StatusOr<std::shared_ptr<Job>> BeginLoading(const proto::ConfigureRequest& request);
  void Loaded(std::shared_ptr<Job> job);
  void NotLoaded();
  // Null: it is not here.
  std::shared_ptr<Job> Remove(const std::string& job_id);

  // A client's lease is over for all jobs, those to come among them. False: it was before.
  absl::StatusOr<bool> Fence(uint64_t incarnation);
  void ForgetFenced() {
    absl::MutexLock lock(&mutex_);
    fenced_.clear();
  }

 private:
  static constexpr size_t kMaxFenced = 1 << 20;

  const int64_t max_jobs_;
  mutable absl::Mutex mutex_;
  std::string loading_ ABSL_GUARDED_BY(mutex_);  // a job; empty: none
  absl::flat_hash_set<uint64_t> fenced_ ABSL_GUARDED_BY(mutex_);
  Jobs jobs_ ABSL_GUARDED_BY(mutex_);
};

template <typename Job>
absl::StatusOr<std::shared_ptr<Job>> JobTable<Job>::Find(const std::string& job_id) const {
  absl::MutexLock lock(&mutex_);
  if (const auto found = jobs_.find(job_id); found != jobs_.end()) {
    return found->second;
  }
  if (!loading_.empty() && (job_id == loading_ || jobs_.empty())) {
    return FailedPrecondition("this server is loading weights of {}", loading_);
  }
  if (jobs_.empty()) {
    return NotFound("{} is not here: this server is not configured", job_id);
  }
  std::vector<std::string> here;
  for (const auto& [id, job] : jobs_) {
    here.push_back(id);
  }
  return plan::JobNotHere(job_id, "this server holds", here);
}

template <typename Job>
std::shared_ptr<Job> JobTable<Job>::EarlierRun(const proto::ConfigureRequest& request) const {
  absl::MutexLock lock(&mutex_);
  const auto found = jobs_.find(request.job_id());
  return found != jobs_.end() && found->second->request().run() < request.run() ? found->second
                                                                                : nullptr;
}

template <typename Job>
absl::StatusOr<std::shared_ptr<Job>> JobTable<Job>::BeginLoading(
    const proto::ConfigureRequest& request) {
  absl::MutexLock lock(&mutex_);
  if (request.job_id().empty()) {
    return InvalidArgument("a job needs an id");
  }
  if (const auto found = jobs_.find(request.job_id()); found != jobs_.end()) {
    const proto::ConfigureRequest& earlier = found->second->request();
    if (!google::protobuf::util::MessageDifferencer::Equals(request, earlier)) {
      return AlreadyExists(
          "{} is configured already, as server {} of {} with another job file or shard map",
          request.job_id(), earlier.server_index(), earlier.servers());
    }
    return found->second;
  }
  if (std::ssize(jobs_) >= max_jobs_) {
    return AlreadyExists("this server cannot take {}: it holds {} already", request.job_id(),
                         jobs_.begin()->first);
  }
  loading_ = request.job_id();
  return nullptr;
}

template <typename Job>
void JobTable<Job>::Loaded(std::shared_ptr<Job> job) {
  absl::MutexLock lock(&mutex_);
  loading_.clear();
  for (const uint64_t incarnation : fenced_) {
    job->Fence(incarnation);
  }
  jobs_[job->request().job_id()] = std::move(job);
}

template <typename Job>
void JobTable<Job>::NotLoaded() {
  absl::MutexLock lock(&mutex_);
  loading_.clear();
}

template <typename Job>
std::shared_ptr<Job> JobTable<Job>::Remove(const std::string& job_id) {
  absl::MutexLock lock(&mutex_);
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) {
    return nullptr;
  }
  std::shared_ptr<Job> job = std::move(found->second);
  jobs_.erase(found);
  return job;
}

template <typename Job>
absl::StatusOr<bool> JobTable<Job>::Fence(uint64_t incarnation) {
  Jobs jobs;
  bool fresh = false;
  {
    absl::MutexLock lock(&mutex_);
    if (fenced_.size() >= kMaxFenced) {
      return ResourceExhausted("{} incarnations are fenced already", fenced_.size());
    }
    fresh = fenced_.insert(incarnation).second;
    jobs = jobs_;
  }
  for (const auto& [id, job] : jobs) {
    job->Fence(incarnation);
  }
  return fresh;
}

}  // namespace shoal::server

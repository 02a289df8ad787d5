// Which jobs a parameter server holds, by id, and which one a call is for. Thread-safe; waits for
// no more than a job's Fence does. A Job has request() and reply(), of its Configure, and
// Fence(incarnation).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
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

// Which runs may begin at a server. Numbers of runs rise, over jobs too, within a term of the
// coordinator, and within a run generations of the shard map, with one of which a server joins it.
// So a Configure that comes late, when its run is over, is told from one of a run that begins,
// whatever the server has held in between.
class NewestRun {
 public:
  // AlreadyExists for one that does not come after all that have begun here.
  absl::Status Check(const proto::ConfigureRequest& request) const {
    return NumberOf(request) > newest_
               ? absl::OkStatus()
               : AlreadyExists("run {} of {} comes late: run {} has begun here", request.run(),
                               request.job_id(), std::get<1>(newest_));
  }
  void Begin(const proto::ConfigureRequest& request, int64_t term) {
    newest_ = {term, request.run(), request.shard_map().generation()};
  }
  // As for a process that begins: for another coordinator.
  void Forget() { newest_ = kNone; }

 private:
  using Number = std::tuple<int64_t, int64_t, int64_t>;  // term, run, generation
  static constexpr Number kNone = {0, -1, 0};
  static Number NumberOf(const proto::ConfigureRequest& request) {
    return {request.term(), request.run(), request.shard_map().generation()};
  }

  Number newest_ = kNone;
};

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

  // The job whose reply answers a Configure that is repeated, if by a later life; null: there is
  // none.
  absl::StatusOr<std::shared_ptr<Job>> Repeated(const proto::ConfigureRequest& request) const;
  // A job is to be loaded, one at a time, and then Loaded or NotLoaded to be called. Refuses what
  // comes late; else returns what makes room for it. That is over: the coordinator took this server
  // to be lost when another process had its address, or a call came late to it.
  absl::StatusOr<std::vector<std::shared_ptr<Job>>> BeginLoading(
      const proto::ConfigureRequest& request);
  // `term`: of its Configure.
  void Loaded(std::shared_ptr<Job> job, int64_t term);
  void NotLoaded();
  // Null: it is not here, or in a later run.
  std::shared_ptr<Job> Remove(const std::string& job_id, int64_t run);

  // A client's lease is over for all jobs, those to come among them. False: it was before.
  absl::StatusOr<bool> Fence(uint64_t incarnation);
  // As for a process that begins: fences, and which runs there were.
  void Forget() {
    absl::MutexLock lock(&mutex_);
    fenced_.clear();
    newest_run_.Forget();
  }

 private:
  static constexpr size_t kMaxFenced = 1 << 20;

  const int64_t max_jobs_;
  mutable absl::Mutex mutex_;
  std::string loading_ ABSL_GUARDED_BY(mutex_);  // a job; empty: none
  absl::flat_hash_set<uint64_t> fenced_ ABSL_GUARDED_BY(mutex_);
  NewestRun newest_run_ ABSL_GUARDED_BY(mutex_);
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
absl::StatusOr<std::shared_ptr<Job>> JobTable<Job>::Repeated(
    const proto::ConfigureRequest& request) const {
  absl::MutexLock lock(&mutex_);
  const auto found = jobs_.find(request.job_id());
  if (found == jobs_.end() || found->second->request().run() != request.run()) {
    return nullptr;
  }
  if (request.shard_map().generation() > found->second->request().shard_map().generation()) {
    return nullptr;  // it joins the run again
  }
  proto::ConfigureRequest same = request;
  proto::ConfigureRequest earlier = found->second->request();
  same.clear_term();
  earlier.clear_term();
  if (!google::protobuf::util::MessageDifferencer::Equals(same, earlier)) {
    return AlreadyExists(
        "{} is configured already, as server {} of {} with another job file or shard map",
        request.job_id(), earlier.server_index(), earlier.servers());
  }
  return found->second;
}

template <typename Job>
absl::StatusOr<std::vector<std::shared_ptr<Job>>> JobTable<Job>::BeginLoading(
    const proto::ConfigureRequest& request) {
  absl::MutexLock lock(&mutex_);
  if (request.job_id().empty()) {
    return InvalidArgument("a job needs an id");
  }
  SHOAL_RETURN_IF_ERROR(newest_run_.Check(request));
  std::vector<std::shared_ptr<Job>> over;
  const auto end = [&](auto job) {
    over.push_back(std::move(job->second));
    jobs_.erase(job);
  };
  if (const auto earlier = jobs_.find(request.job_id()); earlier != jobs_.end()) {
    end(earlier);
  }
  while (!jobs_.empty() && std::ssize(jobs_) >= max_jobs_) {
    end(std::ranges::min_element(jobs_, {},
                                 [](const auto& entry) { return entry.second->request().run(); }));
  }
  loading_ = request.job_id();
  return over;
}

template <typename Job>
void JobTable<Job>::Loaded(std::shared_ptr<Job> job, int64_t term) {
  absl::MutexLock lock(&mutex_);
  loading_.clear();
  newest_run_.Begin(job->request(), term);
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
std::shared_ptr<Job> JobTable<Job>::Remove(const std::string& job_id, int64_t run) {
  absl::MutexLock lock(&mutex_);
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end() || found->second->request().run() > run) {
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
    if (fenced_.size() >= kMaxFenced && !fenced_.contains(incarnation)) {
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

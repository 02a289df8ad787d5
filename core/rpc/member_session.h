// Registers a server or worker with the coordinator, keeps its membership in the background
// (member_core.h decides) and a connection by whose end the coordinator sees at once that the
// process is gone, and says when the membership is over.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/base/threads/steady_condition.h"
#include "core/rpc/channel.h"
#include "core/rpc/coordinator_service.h"
#include "core/rpc/member_core.h"

namespace shoal::rpc {

// This machine's; "unknown" where it has none.
std::string HostName();

// This build's, "0.1.0+3f09c4d2": the number of the version, and of what is said between processes,
// which must be the same in all of a job.
const char* ProgramVersion();

struct MemberOptions {
  proto::Role role = proto::ROLE_UNSPECIFIED;
  std::string address;                          // HOST:PORT where other processes reach its service
  int index = -1;                               // requested; -1: the lowest free one
  bool takes_over = false;                      // that index, once its holder is gone
  bool stays = false;                           // for job after job
  absl::Duration patience = absl::Seconds(30);  // for the coordinator to become reachable
  std::function<bool()> stop = nullptr;         // ends that wait, with Cancelled
  int64_t free_memory_bytes = 0;                // of the host, for a job; 0: unknown
  int metrics_port = 0;                         // at the host of the address; 0: none
  Token command_token = {};                     // of a server: what its service asks of commands
  std::string instructions = {};                // as HostFacts have them; of a worker
  std::string gpu = {};
};

// Whether the coordinator does not take this process, now or later.
bool IsRefusal(const absl::Status& status);

class MemberSession {
 public:
  // `on_end` runs at most once, on a thread of the session: with OK when the job is over, with an
  // error when membership is lost (the coordinator refuses this process, or could not be reached
  // for as long as it said). It must not destroy the session.
  static absl::StatusOr<std::unique_ptr<MemberSession>> Join(
      std::shared_ptr<Channel> coordinator, const MemberOptions& options,
      std::function<void(const absl::Status&)> on_end);
  ~MemberSession();  // calls Leave("") if nobody has

  int index() const { return index_; }
  uint64_t incarnation() const { return incarnation_; }

  // Asks to leave once the job at hand has let go of this process, as LeaveRequest.when_free says.
  // False: not yet, ask again.
  absl::StatusOr<bool> AskToLeave(const std::string& reason);
  // Ends renewals and tells the coordinator that this process leaves, which fails a running job
  // with `reason`. Takes two seconds at most. Idempotent.
  void Leave(const std::string& reason);

 private:
  MemberSession(std::shared_ptr<Channel> coordinator, const proto::RegisterRequest& request,
                const proto::RegisterReply& reply, std::function<void(const absl::Status&)> on_end);
  void Keep();
  // False: Leave was called.
  bool AwaitNext();
  void Act();
  // Unless there is one.
  void HoldConnection();
  void OnConnectionEnd(const absl::Status& why);
  void EndConnection();

  const std::shared_ptr<Channel> coordinator_;
  const int index_;
  const uint64_t incarnation_;
  const std::function<void(const absl::Status&)> on_end_;
  // Of the thread.
  proto::RegisterRequest request_;
  proto::RenewLeaseRequest renewal_;  // with the lines that it has not said yet
  MemberCore core_;
  bool told_ = false;  // that there is no answer

  absl::Mutex mutex_;
  SteadyCondition stop_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
  bool broke_ ABSL_GUARDED_BY(mutex_) = false;  // since the last renewal
  int64_t connection_ = 0;                      // the call's number, of the thread
  std::thread thread_;
};

}  // namespace shoal::rpc

// A small parameter server for tests of the client: the test publishes weights; the server checks
// pushes, counts each once and adds them up as integers. Follows core/transport/data_layout.h over
// any transport, on a thread of its own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/server_client.h"
#include "client/unit_layout.h"
#include "core/base/dtype.h"
#include "core/transport/data_layout.h"
#include "core/transport/transport.h"
#include "proto/server.pb.h"

namespace shoal::client {

class FakeServer {
 public:
  struct Options {
    std::string job_id;
    int index = 0;
    DType wire_type = DType::kF32;
    DType gradient_type = DType::kF32;
    int64_t slots = 4;
    bool reserves_all = false;  // has places for all partitions, also for those that it lacks
  };
  // `layout` and `transport` must outlive it.
  FakeServer(const Options& options, const Layout* layout, transport::Transport* transport);
  ~FakeServer();

  // Writes version `version` of every partition that it holds: element i of a unit is
  // Weight(version, unit, i), in NF4 what that becomes.
  void Publish(int64_t version);
  // Marks one partition's buffer of that version as being written, or done.
  void SetWriting(int partition, int64_t version, bool writing);
  static float Weight(int64_t version, int unit, int64_t element);

  absl::StatusOr<proto::ConnectReply> Connect(const proto::ConnectRequest& request);
  // Refuses Connect with this from now on; OK ends that.
  void RefuseConnections(const absl::Status& why);
  // Closes the current connections.
  void BreakConnections();
  // While set, takes pushes but does not acknowledge them.
  void HoldAcknowledgements(bool hold);
  // Refuses pushes of any other (step, attempt).
  void OpenAttempt(int64_t step, int64_t attempt);

  // The sum of all pushes of the attempt, in the unit's layout (only its own partitions are set).
  std::vector<int64_t> Sum(int unit) const;
  int64_t pushes() const;  // each counted once
  int64_t duplicates() const;
  int64_t most_in_flight() const;  // unanswered pushes of one client

 private:
  struct Client {
    uint64_t incarnation = 0;
    std::shared_ptr<transport::Region> slots;
    std::shared_ptr<transport::Region> answers;  // written from, one per slot
    std::vector<uint64_t> answered;              // push ids, by slot
    bool closed = false;
    std::unique_ptr<transport::Connection> connection;
  };

  void Run();
  void Look(Client& client, size_t slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  transport::PushAcknowledgement Apply(const Client& client, const transport::PushHeader& header,
                                       const std::byte* payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Holds(int partition) const;
  bool HasPlace(int partition) const;
  void Write(const plan::PartitionSpec& partition, int64_t version, std::byte* to) const;
  int64_t HeaderOffset(int partition) const;
  int64_t BufferOffset(int partition, int64_t version) const;

  const Options options_;
  const Layout* const layout_;
  transport::Transport* const transport_;
  std::unique_ptr<transport::EventQueue> queue_;
  std::shared_ptr<transport::Region> weights_;
  std::vector<int64_t> offsets_;  // of headers in the weights region, by partition
  int64_t slot_bytes_ = 0;

  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<Client>> clients_ ABSL_GUARDED_BY(mutex_);
  absl::Status refuse_ ABSL_GUARDED_BY(mutex_);
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
  bool hold_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t attempt_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<std::pair<int, int64_t>> applied_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<int64_t>> sums_ ABSL_GUARDED_BY(mutex_);  // by partition
  int64_t pushes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t duplicates_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t most_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

// Several fake servers, called within this process.
class FakeServers : public ServerClient {
 public:
  explicit FakeServers(std::vector<FakeServer*> servers) : servers_(std::move(servers)) {}
  absl::StatusOr<proto::ConnectReply> Connect(int server, const proto::ConnectRequest& request,
                                              absl::Duration timeout) override;
  void Cancel() override;
  // Stops answering calls.
  void Hold();
  // Returns the number of calls since.
  int held() const;

 private:
  std::vector<FakeServer*> servers_;
  mutable absl::Mutex mutex_;
  bool hold_ ABSL_GUARDED_BY(mutex_) = false;
  int held_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace shoal::client

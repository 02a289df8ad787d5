// A client in the test's process that speaks the data path by hand, to send what a real client
// never would: duplicates, garbage, headers of other steps, pushes without a doorbell.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "core/transport/data_layout.h"
#include "core/transport/transport.h"
#include "server/service/parameter_service.h"

namespace shoal::server {

// The job of testing clusters, and of clients that name none.
inline constexpr const char* kTestingJob = "job-1";

template <typename Request>
Request OfTestingJob() {
  Request request;
  request.set_job_id(kTestingJob);
  return request;
}

class TestingClient {
 public:
  struct Push {
    int partition = 0;
    int64_t step = 1;
    int64_t attempt = 1;
    int64_t sequence = 1;  // of this client's contributions to the partition
    std::vector<float> gradient;
    bool ring = true;
    int64_t key = 0;      // 0: KeyOf the client's incarnation and `sequence`
    bool verify = false;  // with the payload's hash
  };
  struct Answer {
    absl::StatusCode code = absl::StatusCode::kOk;
    bool applied_before = false;
    bool operator==(const Answer&) const = default;
  };

  // Contributions of different clients are apart from each other.
  static int64_t KeyOf(uint64_t incarnation, int64_t sequence) {
    return static_cast<int64_t>(incarnation) * 4096 + sequence;
  }

  // `name`; empty: derived from its incarnation.
  TestingClient(ParameterService* service, transport::Transport* transport, uint64_t incarnation,
                int64_t generation, const std::string& name = "",
                const std::string& job_id = kTestingJob);
  ~TestingClient();

  // Connects, dropping an older connection. `read_only` asks for no slots, `in_gpu` for weights and
  // slots in the server's GPU, if the transport opens its memory.
  absl::Status Connect(bool read_only = false, bool in_gpu = false);
  const proto::ConnectReply& granted() const { return granted_; }
  bool closed() const { return closed_; }

  // Returns the header that a real client would write.
  transport::PushHeader Header(const Push& push);
  // Writes header and gradient into a slot, unchanged.
  void Write(int64_t slot, const transport::PushHeader& header, const std::vector<float>& gradient,
             bool ring);
  void WriteBytes(int64_t slot, const std::string& bytes, bool ring);
  void Ring(uint32_t immediate);

  // Pushes into `slot` without waiting for the answer.
  uint64_t Send(int64_t slot, const Push& push);
  // Returns the answer to that push if it has arrived.
  std::optional<Answer> Poll(int64_t slot, uint64_t push_id);
  // Pushes and waits up to five seconds for the answer.
  std::optional<Answer> SendAndWait(const Push& push);
  std::optional<Answer> WaitFor(int64_t slot, uint64_t push_id);

  // One partition's weights of `version`, following the sequence protocol; Aborted on a mismatch.
  absl::StatusOr<std::vector<std::byte>> Read(int partition, int64_t version, int64_t bytes);

 private:
  void Pump();
  void WaitForWrites();

  ParameterService* const service_;
  transport::Transport* const transport_;
  const uint64_t incarnation_;
  const int64_t generation_;
  const std::string name_;
  const std::string job_id_;
  std::unique_ptr<transport::EventQueue> queue_;
  std::shared_ptr<transport::Region> acknowledgements_;
  std::shared_ptr<transport::Region> source_;
  std::shared_ptr<transport::Region> destination_;
  std::unique_ptr<transport::Connection> connection_;
  proto::ConnectReply granted_;
  std::map<int, proto::PartitionLocation> locations_;
  uint64_t next_push_id_ = 1;
  uint64_t next_operation_ = 1;
  std::set<uint64_t> under_way_;
  bool closed_ = false;
};

}  // namespace shoal::server

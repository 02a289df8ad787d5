#include "core/transport/testing/fault_transport.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/transport/testing/fault_queue.h"
#include "core/transport/testing/forwarding_transport.h"

namespace shoal::transport {
namespace {

class FaultConnection final : public Connection {
 public:
  // `transport` makes it, and registers memory for it.
  FaultConnection(std::unique_ptr<Connection> inner, Transport* transport, FaultQueue* queue,
                  const FaultOptions& faults, int64_t max_outstanding)
      : transport_(transport),
        inner_(std::move(inner)),
        queue_(queue),
        faults_(faults),
        outstanding_(std::make_shared<OutstandingOperations>(max_outstanding)) {
    queue_->Track(inner_->id(), outstanding_);
  }

  uint64_t id() const override { return inner_->id(); }
  const std::string& peer() const override { return inner_->peer(); }
  std::vector<int64_t> remote_region_sizes() const override {
    return inner_->remote_region_sizes();
  }
  void Close() override { inner_->Close(); }

  absl::Status PostReads(std::span<const ReadOperation> operations) override {
    if (!outstanding_->TakeReads(operations.size())) {
      return ResourceExhausted("{}: more than {} reads outstanding", peer(), outstanding_->limit());
    }
    absl::Status status = CountOrBreak(operations.size());
    if (status.ok()) {
      status = inner_->PostReads(operations);
    }
    return Settle(
        Event::Kind::kReadDone, operations,
        [](const ReadOperation& read) { return read.into.size(); }, std::move(status));
  }

  absl::Status PostWrites(std::span<const WriteOperation> operations) override {
    if (!outstanding_->TakeWrites(operations.size())) {
      return ResourceExhausted("{}: more than {} writes outstanding", peer(),
                               outstanding_->limit());
    }
    absl::Status status = CountOrBreak(operations.size());
    if (status.ok()) {
      status = PostDamaged(operations);
    }
    return Settle(
        Event::Kind::kWriteDone, operations,
        [](const WriteOperation& write) { return write.from.size(); }, std::move(status));
  }

 private:
  absl::Status PostDamaged(std::span<const WriteOperation> operations) {
    if (faults_.damage_payload <= 0 && faults_.damage_header <= 0) {
      return inner_->PostWrites(operations);
    }
    std::vector<WriteOperation> writes(operations.begin(), operations.end());
    int64_t payloads = payloads_;
    int64_t headers = headers_;
    for (WriteOperation& write : writes) {
      const bool damage = write.ring ? !write.from.empty() && ++headers == faults_.damage_header
                                     : ++payloads == faults_.damage_payload;
      if (damage) {
        SHOAL_ASSIGN_OR_RETURN(
            damaged_,
            transport_->Allocate(static_cast<int64_t>(write.from.size()), Access::kLocal));
        std::ranges::copy(write.from, damaged_->bytes().begin());
        // The exponent of a float: it becomes quite another number, and stays finite.
        damaged_->bytes()[write.from.size() / 8 * 4 + 3] ^= std::byte{0x3e};
        write.from = damaged_->bytes().first(write.from.size());
      }
    }
    SHOAL_RETURN_IF_ERROR(inner_->PostWrites(writes));
    payloads_ = payloads;
    headers_ = headers;
    return absl::OkStatus();
  }

  absl::Status CountOrBreak(size_t operations) {
    posted_ += static_cast<int64_t>(operations);
    if (faults_.break_after_operations <= 0 || posted_ <= faults_.break_after_operations) {
      return absl::OkStatus();
    }
    const absl::Status why = Unavailable("{}: connection broken on purpose after {} operations",
                                         peer(), faults_.break_after_operations);
    queue_->Break(id(), why);
    inner_->Close();
    return why;
  }

  template <typename Operation, typename Size>
  absl::Status Settle(Event::Kind kind, std::span<const Operation> operations, const Size& size,
                      absl::Status status) {
    for (const Operation& operation : operations) {
      if (status.ok()) {
        queue_->Pace(id(), kind, static_cast<int64_t>(size(operation)));
      } else {
        outstanding_->Polled(kind);  // none was posted
      }
    }
    return status;
  }

  Transport* const transport_;
  std::shared_ptr<Region> damaged_;  // until the connection has ended
  const std::unique_ptr<Connection> inner_;
  FaultQueue* const queue_;
  const FaultOptions faults_;
  const std::shared_ptr<OutstandingOperations> outstanding_;
  // Used only by the posting thread.
  int64_t posted_ = 0;
  int64_t payloads_ = 0;
  int64_t headers_ = 0;
};

class FaultConnector final : public Connector {
 public:
  FaultConnector(std::unique_ptr<Connector> inner, Transport* transport, FaultQueue* queue,
                 const FaultOptions& faults, int64_t max_outstanding)
      : inner_(std::move(inner)),
        transport_(transport),
        queue_(queue),
        faults_(faults),
        max_outstanding_(max_outstanding) {}
  const std::string& offer() const override { return inner_->offer(); }
  absl::StatusOr<std::unique_ptr<Connection>> Complete(const std::string& answer) override {
    SHOAL_ASSIGN_OR_RETURN(auto connection, inner_->Complete(answer));
    return std::make_unique<FaultConnection>(std::move(connection), transport_, queue_, faults_,
                                             max_outstanding_);
  }

 private:
  const std::unique_ptr<Connector> inner_;
  Transport* const transport_;
  FaultQueue* const queue_;
  const FaultOptions faults_;
  const int64_t max_outstanding_;
};

class FaultTransport final : public ForwardingTransport {
 public:
  FaultTransport(std::unique_ptr<Transport> inner, const FaultOptions& faults)
      : ForwardingTransport(std::move(inner)),
        faults_(faults),
        capabilities_(ForwardingTransport::capabilities()) {
    capabilities_.inline_reads = false;  // completions may be late
    if (!capabilities_.writes_in_order) {
      faults_.drop_doorbell_probability = 0;
    }
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  absl::StatusOr<std::unique_ptr<EventQueue>> CreateQueue() override {
    SHOAL_ASSIGN_OR_RETURN(auto queue, ForwardingTransport::CreateQueue());
    return std::make_unique<FaultQueue>(std::move(queue), faults_, next_stream_.fetch_add(1));
  }

  absl::StatusOr<std::unique_ptr<Connector>> Offer(const ConnectionOptions& options) override {
    SHOAL_ASSIGN_OR_RETURN(FaultQueue * queue, QueueOf(options));
    SHOAL_ASSIGN_OR_RETURN(auto connector, ForwardingTransport::Offer(Inner(options, queue)));
    return std::make_unique<FaultConnector>(std::move(connector), this, queue, faults_,
                                            options.max_outstanding);
  }

  absl::StatusOr<Acceptance> Accept(const std::string& offer,
                                    const ConnectionOptions& options) override {
    SHOAL_ASSIGN_OR_RETURN(FaultQueue * queue, QueueOf(options));
    SHOAL_ASSIGN_OR_RETURN(Acceptance acceptance,
                           ForwardingTransport::Accept(offer, Inner(options, queue)));
    acceptance.connection = std::make_unique<FaultConnection>(
        std::move(acceptance.connection), this, queue, faults_, options.max_outstanding);
    return acceptance;
  }

 private:
  static absl::StatusOr<FaultQueue*> QueueOf(const ConnectionOptions& options) {
    auto* queue = dynamic_cast<FaultQueue*>(options.queue);
    if (queue == nullptr) {
      return InvalidArgument("{}: the event queue belongs to another transport", options.peer);
    }
    return queue;
  }
  static ConnectionOptions Inner(ConnectionOptions options, FaultQueue* queue) {
    options.queue = queue->inner();
    return options;
  }

  FaultOptions faults_;
  Capabilities capabilities_;
  std::atomic<uint64_t> next_stream_{0};
};

}  // namespace

std::unique_ptr<Transport> MakeFaultTransport(std::unique_ptr<Transport> inner,
                                              const FaultOptions& options) {
  return std::make_unique<FaultTransport>(std::move(inner), options);
}

}  // namespace shoal::transport

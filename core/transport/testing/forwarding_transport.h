// A transport that forwards everything to another; the base of decorators in tests.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/transport/transport.h"

namespace shoal::transport {

class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  const Capabilities& capabilities() const override { return inner_->capabilities(); }
  TransportStatistics statistics() const override { return inner_->statistics(); }
  absl::StatusOr<std::unique_ptr<EventQueue>> CreateQueue() override {
    return inner_->CreateQueue();
  }
  absl::StatusOr<std::shared_ptr<Region>> Allocate(int64_t bytes, Access access) override {
    return inner_->Allocate(bytes, access);
  }
  absl::StatusOr<std::shared_ptr<Region>> Register(std::span<std::byte> memory,
                                                   Access access) override {
    return inner_->Register(memory, access);
  }
  absl::StatusOr<std::unique_ptr<Connector>> Offer(const ConnectionOptions& options) override {
    return inner_->Offer(options);
  }
  absl::StatusOr<Acceptance> Accept(const std::string& offer,
                                    const ConnectionOptions& options) override {
    return inner_->Accept(offer, options);
  }

 private:
  const std::unique_ptr<Transport> inner_;
};

}  // namespace shoal::transport

// The Connection of every transport: holds the transport's own connection state, shared with its
// queues and threads, and closes it on destruction.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/transport/transport.h"

namespace shoal::transport {

// State has the methods of Connection except Close: `close` does that, and may be called repeatedly
// and from any thread.
template <typename State>
class StateConnection final : public Connection {
 public:
  StateConnection(std::shared_ptr<State> state, std::function<void(State&)> close)
      : state_(std::move(state)), close_(std::move(close)) {}
  ~StateConnection() override { Close(); }

  uint64_t id() const override { return state_->id(); }
  const std::string& peer() const override { return state_->peer(); }
  std::vector<int64_t> remote_region_sizes() const override {
    return state_->remote_region_sizes();
  }
  absl::Status PostReads(std::span<const ReadOperation> operations) override {
    return state_->PostReads(operations);
  }
  absl::Status PostWrites(std::span<const WriteOperation> operations) override {
    return state_->PostWrites(operations);
  }
  void Close() override { close_(*state_); }

 private:
  const std::shared_ptr<State> state_;
  const std::function<void(State&)> close_;
};

template <typename State, typename Closing>
std::unique_ptr<Connection> MakeStateConnection(std::shared_ptr<State> state, Closing close) {
  return std::make_unique<StateConnection<State>>(std::move(state), std::move(close));
}

}  // namespace shoal::transport

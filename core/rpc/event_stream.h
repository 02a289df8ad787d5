// Where a method that streams writes its events.
#pragma once

#include <functional>

namespace shoal::rpc {

template <typename Event>
struct EventStream {
  std::function<bool(const Event&)> write;  // false once the watcher is gone
  std::function<bool()> gone;
};

}  // namespace shoal::rpc

// Lines on their way to a run's record: taken at once, written in the background, several at a time
// where the disk is slower than the run. Bounded: what finds no room is dropped and counted in a
// line of its own. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "core/base/json/json.h"

namespace shoal::server {

class RecordQueue {
 public:
  using Executor = std::function<void(std::function<void()>)>;
  // Writes whole lines; called on the executor, and by the destructor.
  using Write = std::function<absl::Status(const std::string& lines)>;

  RecordQueue(Executor disk, Write write);
  // Writes what waits. The executor runs nothing any more.
  ~RecordQueue();
  RecordQueue(const RecordQueue&) = delete;
  RecordQueue& operator=(const RecordQueue&) = delete;

  void Add(const Json& line);
  // Until this is called lines wait.
  void Open();

  static constexpr size_t kMaxBytes = 4 << 20;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace shoal::server

// A copy stream of the CPU device: commands in order on the stream's own thread.
//
// It keeps the time of a bus with a set rate. A command begins when it has been put on the stream,
// earlier commands have ended and what the stream waits for has happened; a copy of n bytes takes
// n / rate from then. The thread sleeps towards these times, piece by piece, and wakes up slightly
// late; since the next copy's time counts from when the previous one should have ended, lateness
// does not add up. Only worker/backend/cpu includes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/random.h"
#include "worker/backend/cpu/cpu_device.h"
#include "worker/backend/cpu/cpu_event.h"

namespace shoal::worker {

class CpuCopyStream final : public Stream {
 public:
  // Unfinished commands on the stream; callers that add more wait, as with a GPU's driver.
  static constexpr size_t kMaxCommands = 4096;

  // `number` distinguishes the streams of a device.
  CpuCopyStream(const CpuCopyOptions& options, uint64_t number, Clock& clock);
  // Waits until everything on the stream is done.
  ~CpuCopyStream() override;

  void Copy(void* to, const void* from, int64_t bytes) override;
  void Fill(void* to, std::byte value, int64_t bytes) override;
  std::unique_ptr<Event> Record() override;
  void WaitFor(const Event& event) override;
  absl::Status Synchronize() override;

 private:
  struct Command {
    enum class Kind : uint8_t { kCopy, kFill, kRecord, kWait };
    Kind kind = Kind::kCopy;
    std::byte value{0};
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    int64_t bytes = 0;
    std::shared_ptr<CpuEventState> record;
    std::shared_ptr<const CpuEventState> wait;
    absl::Time put;
  };

  void Put(Command command) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Execute(const Command& command);
  void RunCopy(const Command& command);
  void SleepUntil(absl::Time time);

  const CpuCopyOptions options_;
  Clock& clock_;

  absl::Mutex mutex_;
  std::deque<Command> commands_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Used only by the thread.
  Random random_;
  absl::Time free_ = absl::InfinitePast();    // by the bus's time
  absl::Time waited_ = absl::InfinitePast();  // time of the last event that the stream waited for
  int64_t copies_ = 0;
  absl::Status error_;

  std::thread thread_;
};

}  // namespace shoal::worker

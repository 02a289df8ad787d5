#include "worker/backend/cpu/copy_stream.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/status.h"

namespace shoal::worker {
namespace {

// Copied between two looks at the clock.
constexpr int64_t kPieceBytes = int64_t{1} << 20;
// A copy goes on if it is less than this ahead of its time.
constexpr absl::Duration kWorthASleep = absl::Microseconds(50);

}  // namespace

CpuCopyStream::CpuCopyStream(const CpuCopyOptions& options, uint64_t number, Clock& clock)
    : options_(options), clock_(clock), random_(options.seed, number), thread_([this] { Run(); }) {}

CpuCopyStream::~CpuCopyStream() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void CpuCopyStream::Copy(void* to, const void* from, int64_t bytes) {
  Put({.kind = Command::Kind::kCopy,
       .to = static_cast<std::byte*>(to),
       .from = static_cast<const std::byte*>(from),
       .bytes = bytes});
}

void CpuCopyStream::Fill(void* to, std::byte value, int64_t bytes) {
  Put({.kind = Command::Kind::kFill,
       .value = value,
       .to = static_cast<std::byte*>(to),
       .bytes = bytes});
}

std::unique_ptr<Event> CpuCopyStream::Record() {
  auto state = std::make_shared<CpuEventState>();
  Put({.kind = Command::Kind::kRecord, .record = state});
  return std::make_unique<CpuEvent>(std::move(state));
}

void CpuCopyStream::WaitFor(const Event& event) {
  Put({.kind = Command::Kind::kWait, .wait = static_cast<const CpuEvent&>(event).state()});
}

absl::Status CpuCopyStream::Synchronize() { return Record()->Wait(); }

void CpuCopyStream::Put(Command command) {
  command.put = clock_.Now();
  absl::MutexLock lock(&mutex_);
  auto has_room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return commands_.size() < kMaxCommands;
  };
  mutex_.Await(absl::Condition(&has_room));
  commands_.push_back(std::move(command));
}

void CpuCopyStream::Run() {
  // By default the kernel may let a thread sleep 50 microseconds longer than asked.
  prctl(PR_SET_TIMERSLACK, 1000UL);
  while (true) {
    Command command;
    {
      absl::MutexLock lock(&mutex_);
      auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !commands_.empty();
      };
      mutex_.Await(absl::Condition(&has_work));
      if (commands_.empty()) {
        return;
      }
      command = std::move(commands_.front());
      commands_.pop_front();
    }
    Execute(command);
  }
}

void CpuCopyStream::Execute(const Command& command) {
  switch (command.kind) {
    case Command::Kind::kCopy:
      if (++copies_; options_.fail_at_copy > 0 && copies_ >= options_.fail_at_copy) {
        error_ = Internal("cpu copy stream: copy {} failed on purpose", copies_);
      }
      if (error_.ok() && command.bytes > 0) {
        RunCopy(command);
      }
      break;
    case Command::Kind::kFill:
      if (error_.ok() && command.bytes > 0) {
        std::memset(command.to, static_cast<int>(command.value),
                    static_cast<size_t>(command.bytes));
      }
      break;
    case Command::Kind::kRecord:
      command.record->Set(error_, clock_.Now());
      break;
    case Command::Kind::kWait:
      if (absl::Status status = command.wait->Wait(); error_.ok()) {
        error_ = std::move(status);
      }
      waited_ = std::max(waited_, command.wait->at());
      break;
  }
}

void CpuCopyStream::RunCopy(const Command& command) {
  absl::Time begin = std::max({command.put, free_, waited_});
  if (options_.longest_delay > absl::ZeroDuration()) {
    begin += random_.Uniform() * options_.longest_delay;
    SleepUntil(begin);
  }
  const double rate = options_.bytes_per_second;
  for (int64_t done = 0; done < command.bytes;) {
    const int64_t piece = std::min(kPieceBytes, command.bytes - done);
    std::memcpy(command.to + done, command.from + done, static_cast<size_t>(piece));
    done += piece;
    if (rate > 0) {
      free_ = begin + absl::Seconds(static_cast<double>(done) / rate);
      SleepUntil(done == command.bytes ? free_ : free_ - kWorthASleep);
    }
  }
}

void CpuCopyStream::SleepUntil(absl::Time time) {
  if (const absl::Duration left = time - clock_.Now(); left > absl::ZeroDuration()) {
    clock_.SleepFor(left);
  }
}

}  // namespace shoal::worker

#include "worker/ops/testing/late_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "worker/backend/cpu/cpu_device.h"

namespace shoal::worker {

class LateDevice::LateStream final : public Stream {
 public:
  explicit LateStream(LateDevice& device) : device_(device) {
    absl::MutexLock lock(&device.mutex_);
    device.streams_.push_back(this);
  }
  ~LateStream() override {
    SHOAL_CHECK(Synchronize().ok());
    absl::MutexLock lock(&device_.mutex_);
    std::erase(device_.streams_, this);
  }

  void Copy(void* to, const void* from, int64_t bytes) override {
    Put({.work = [=] {
      if (bytes > 0) {
        std::memcpy(to, from, static_cast<size_t>(bytes));
      }
    }});
  }
  void Fill(void* to, std::byte value, int64_t bytes) override {
    Put({.work = [=] { std::memset(to, static_cast<int>(value), static_cast<size_t>(bytes)); }});
  }
  std::unique_ptr<Event> Record() override;
  void WaitFor(const Event& event) override;
  absl::Status Synchronize() override { return Record()->Wait(); }

  void Put(Piece piece) {
    absl::MutexLock lock(&device_.mutex_);
    pieces_.push_back(std::move(piece));
  }
  bool CanRun() const {
    return !pieces_.empty() && (pieces_.front().wait == nullptr || pieces_.front().wait->done);
  }
  void RunOne() {
    const Piece piece = std::move(pieces_.front());
    pieces_.pop_front();
    if (piece.work) {
      piece.work();
    } else if (piece.record != nullptr) {
      *piece.record = {.done = true, .at = absl::Now()};
    }
  }

 private:
  LateDevice& device_;
  std::deque<Piece> pieces_;  // under the device's lock
};

class LateDevice::LateEvent final : public Event {
 public:
  LateEvent(LateDevice& device, std::shared_ptr<Moment> moment)
      : device_(device), moment_(std::move(moment)) {}
  bool WaitDone(absl::Duration timeout) override {
    absl::MutexLock lock(&device_.mutex_);
    if (timeout > absl::ZeroDuration()) {
      device_.RunUntil(*moment_);
    }
    return moment_->done;
  }
  absl::Status Wait() override {
    WaitDone(absl::InfiniteDuration());
    return absl::OkStatus();
  }
  absl::Time at() const override {
    SHOAL_CHECK(moment_->done);
    return moment_->at;
  }
  const std::shared_ptr<Moment>& moment() const { return moment_; }

 private:
  LateDevice& device_;
  const std::shared_ptr<Moment> moment_;
};

std::unique_ptr<Event> LateDevice::LateStream::Record() {
  auto moment = std::make_shared<Moment>();
  Put({.record = moment});
  return std::make_unique<LateEvent>(device_, std::move(moment));
}

void LateDevice::LateStream::WaitFor(const Event& event) {
  Put({.wait = static_cast<const LateEvent&>(event).moment()});
}

LateDevice::LateDevice(uint64_t seed, int64_t bytes)
    : bytes_(bytes),
      memory_(static_cast<std::byte*>(mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))),
      host_(MakeCpuDevice()),
      random_(seed),
      ranges_(bytes, kBufferAlignment) {
  SHOAL_CHECK(memory_ != MAP_FAILED);
}

LateDevice::~LateDevice() {
  SHOAL_CHECK(streams_.empty() && ranges_.used() == 0);
  munmap(memory_, static_cast<size_t>(bytes_));
}

std::unique_ptr<Stream> LateDevice::NewStream(StreamKind) {
  return std::make_unique<LateStream>(*this);
}

std::unique_ptr<Memory> LateDevice::NewHostMemory(int64_t budget_bytes) {
  return host_->NewHostMemory(budget_bytes);
}

absl::StatusOr<Buffer> LateDevice::Allocate(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const std::optional<int64_t> place = ranges_.Take(bytes);
  if (!place.has_value()) {
    return ResourceExhausted("late memory: {} B asked for, {} of {} B in use", bytes,
                             ranges_.used(), bytes_);
  }
  peak_ = std::max(peak_, ranges_.used());
  std::byte* const data = memory_ + *place;
  mprotect(memory_, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE);
  std::memset(data, 0xFF, static_cast<size_t>(bytes));
  mprotect(memory_, static_cast<size_t>(bytes_), PROT_NONE);
  return Buffer(this, data, bytes);
}

void LateDevice::Free(std::byte* data, int64_t) {
  absl::MutexLock lock(&mutex_);
  ranges_.Give(data - memory_);
}

int64_t LateDevice::allocated_bytes() const {
  absl::MutexLock lock(&mutex_);
  return ranges_.used();
}

int64_t LateDevice::peak_bytes() const {
  absl::MutexLock lock(&mutex_);
  return peak_;
}

void LateDevice::RunUntil(const Moment& moment) {
  if (moment.done) {
    return;
  }
  SHOAL_CHECK(mprotect(memory_, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE) == 0);
  while (!moment.done) {
    std::vector<LateStream*> ready;
    std::ranges::copy_if(streams_, std::back_inserter(ready), &LateStream::CanRun);
    SHOAL_CHECK(!ready.empty());
    ready[random_.Below(ready.size())]->RunOne();
  }
  SHOAL_CHECK(mprotect(memory_, static_cast<size_t>(bytes_), PROT_NONE) == 0);
}

void LateDevice::Put(Stream& stream, std::function<void()> work) {
  static_cast<LateStream&>(stream).Put({.work = std::move(work)});
}

}  // namespace shoal::worker

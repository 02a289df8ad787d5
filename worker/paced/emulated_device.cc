#include "worker/paced/emulated_device.h"

namespace shoal::worker {

void EmulatedDevice::Reset() { done_ = awake_ = clock_.Now(); }

void EmulatedDevice::Run(absl::Duration length) {
  const absl::Time now = clock_.Now();
  done_ += (now - awake_) + length;
  if (done_ > now) {
    clock_.SleepFor(done_ - now);
  }
  awake_ = clock_.Now();
}

}  // namespace shoal::worker

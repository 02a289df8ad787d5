#include "tests/simulation/sim_process.h"

#include "core/base/check.h"

namespace shoal::simulation {

void SimClock::SleepFor(absl::Duration /*duration*/) { SHOAL_CHECK(false); }

Nanoseconds SimClock::Read() const {
  const Nanoseconds now = loop_.now();
  return now + offset_ + (now - since_) * drift_ / 1'000'000;
}

void SimClock::SetDrift(int64_t parts_per_million) {
  offset_ = Read() - loop_.now();
  since_ = loop_.now();
  drift_ = parts_per_million;
}

void SimProcess::Begin() {
  SHOAL_CHECK(!alive_);
  alive_ = true;
  frozen_until_ = 0;
  ++life_;
  if (on_begin) {
    on_begin();
  }
}

void SimProcess::End() {
  if (!alive_) {
    return;
  }
  alive_ = false;
  if (on_end) {
    on_end();
  }
  if (on_gone) {
    on_gone();
  }
}

void SimProcess::Freeze(Nanoseconds duration) {
  if (!alive_ || loop_.now() < frozen_until_) {
    return;
  }
  frozen_until_ = loop_.now() + duration;
  loop_.At(frozen_until_, [this, duration, life = life_] {
    if (alive_ && life == life_ && on_thaw) {
      on_thaw(absl::Nanoseconds(duration));
    }
  });
}

void SimProcess::After(absl::Duration delay, std::function<void()> work) {
  loop_.At(loop_.now() + clock_.LoopTime(ToNanoseconds(delay)),
           [this, life = life_, work = std::move(work)]() mutable {
             if (life == life_) {
               Run(std::move(work));
             }
           });
}

void SimProcess::Run(std::function<void()> work) {
  if (!alive_) {
    return;
  }
  if (loop_.now() < frozen_until_) {
    loop_.At(frozen_until_, [this, life = life_, work = std::move(work)]() mutable {
      if (life == life_) {
        Run(std::move(work));
      }
    });
    return;
  }
  work();
  if (after_each) {
    after_each();
  }
}

}  // namespace shoal::simulation

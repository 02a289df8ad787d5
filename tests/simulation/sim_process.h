// A process of the simulated machines: it lives, freezes, dies and begins anew, and has a clock of
// its own that drifts and jumps.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/clock.h"
#include "tests/simulation/event_loop.h"

namespace shoal::simulation {

// Runs faster or slower than the loop's time, and jumps ahead.
class SimClock final : public Clock {
 public:
  explicit SimClock(const EventLoop& loop) : loop_(loop) {}
  absl::Time Now() const override { return absl::UnixEpoch() + absl::Nanoseconds(Read()); }
  void SleepFor(absl::Duration duration) override;  // nobody may
  // How long the loop takes for a time by this clock.
  Nanoseconds LoopTime(Nanoseconds own) const { return own - own * drift_ / 1'000'000; }
  void SetDrift(int64_t parts_per_million);
  void Jump(Nanoseconds by) { offset_ += by; }

 private:
  Nanoseconds Read() const;

  const EventLoop& loop_;
  int64_t drift_ = 0;      // parts per million
  Nanoseconds since_ = 0;  // when it began to drift like that
  Nanoseconds offset_ = 0;
};

class SimProcess {
 public:
  SimProcess(EventLoop& loop, int id, std::string name)
      : loop_(loop), id_(id), name_(std::move(name)), clock_(loop) {}
  SimProcess(const SimProcess&) = delete;
  SimProcess& operator=(const SimProcess&) = delete;

  int id() const { return id_; }
  const std::string& name() const { return name_; }
  SimClock& clock() { return clock_; }
  bool alive() const { return alive_; }
  // Counts from 1; 0: it never lived.
  int64_t life() const { return life_; }
  // Of a server: what commands to it show, of this life.
  std::string command_token() const { return name_ + "/" + std::to_string(life_); }

  void Begin();
  // Nothing that was to run does.
  void End();
  // How long it stands still yet.
  Nanoseconds FrozenFor() const {
    return frozen_until_ > loop_.now() ? frozen_until_ - loop_.now() : 0;
  }
  // Stands still that long; then all that arrived runs at once.
  void Freeze(Nanoseconds duration);

  // What it writes to.
  bool DiskIsFull() const { return loop_.now() < disk_full_until; }
  bool DiskIsSlow() const { return loop_.now() < disk_slow_until; }
  Nanoseconds disk_full_until = 0;
  Nanoseconds disk_slow_until = 0;

  // Runs it after so much time by its own clock, in this life.
  void After(absl::Duration delay, std::function<void()> work);
  // Runs it now, or once it is not frozen any more.
  void Run(std::function<void()> work);

  // Runs after each function of this process.
  std::function<void()> after_each;
  // Runs when it is no longer frozen, before what arrived meanwhile.
  std::function<void(absl::Duration frozen)> on_thaw;
  std::function<void()> on_begin;
  std::function<void()> on_end;
  // After that: its connections break.
  std::function<void()> on_gone;

 private:
  EventLoop& loop_;
  const int id_;
  const std::string name_;
  SimClock clock_;
  bool alive_ = false;
  int64_t life_ = 0;
  Nanoseconds frozen_until_ = 0;
};

}  // namespace shoal::simulation

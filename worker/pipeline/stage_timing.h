// Where the time of a stage's step goes: what it computes and what it waits for, stretch by
// stretch. Only worker/pipeline includes it.
//
// If the device computes in the calling thread, a stretch is what passes on the clock. If it
// computes asynchronously, it is what passes on the compute stream, between an event before it and
// one after: a wait is then what keeps the otherwise idle stream from going on, whatever the host
// did meanwhile. Phases are the host's in either case.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/time_kind_clock.h"
#include "core/plan/schedule/schedule.h"
#include "worker/backend/backend.h"
#include "worker/pipeline/links/stage_links.h"
#include "worker/pipeline/stage_report.h"

namespace shoal::worker {

// Something that the compute waits for.
struct Awaited {
  enum class What : uint8_t {
    kOffload,
    kReload,
    kMessage,  // that is used next
    kRoom,     // for the message that is made next
    kArrival,  // of all messages, at the end
  };
  What what = What::kArrival;
  plan::Action action;   // what comes after the wait
  StageMessage message;  // kMessage and kRoom

  bool IsTransfer() const { return what == What::kOffload || what == What::kReload; }
  // Whether one stage is waited for.
  bool IsForAStage() const { return what == What::kMessage || what == What::kRoom; }
};
// "the reload of chunk 0 microbatch 3", "room for ..."
std::string NameOf(const Awaited& awaited);

class StageTiming {
 public:
  // `compute`: the stream on which time is taken; null: on the clock.
  StageTiming(Stream* compute, Clock& clock, TimeKindClock& time_kinds,
              const plan::ScheduleShape& shape)
      : compute_(compute),
        clock_(clock),
        time_kinds_(time_kinds),
        shape_(shape),
        microbatch_seconds_(static_cast<size_t>(shape.microbatches), 0) {}

  // Returns what `wait` returns. Stretches do not nest.
  template <typename Wait>
  auto Waiting(const Awaited& awaited, const Wait& wait) {
    const bool transfer = awaited.IsTransfer();
    const TimeKindClock::Scope waiting(
        time_kinds_, transfer ? TimeKind::kTransferWait : TimeKind::kNeighbourWait);
    Begin(transfer ? StageSpan::Kind::kTransferWait : StageSpan::Kind::kNeighbourWait, awaited);
    auto result = wait();
    End();
    if (awaited.IsForAStage()) {
      time_kinds_.WaitedFor(awaited.message.peer);
    }
    return result;
  }
  template <typename Work>
  auto Computing(const plan::Action& action, const Work& work) {
    const double before = Computed();
    auto result = [&] {
      const TimeKindClock::Scope computing(
          time_kinds_,
          action.operation == plan::Operation::kForward ? TimeKind::kForward : TimeKind::kBackward);
      Begin(StageSpan::Kind::kCompute, {.action = action});
      auto done = work();
      End();
      return done;
    }();
    microbatch_seconds_[static_cast<size_t>(action.microbatch)] += Computed() - before;
    return result;
  }

  // Fills in everything except copies, once all of it is done on the compute stream. `spans`:
  // includes those.
  void Fill(StageReport& report, bool spans) const;

 private:
  struct Stretch {
    StageSpan::Kind kind = StageSpan::Kind::kCompute;
    Awaited of;
    absl::Time begin;
    absl::Time end;
    std::unique_ptr<Event> begun;  // on a stream
    std::unique_ptr<Event> ended;
  };
  void Begin(StageSpan::Kind kind, const Awaited& of);
  void End();
  // Excludes waits for weights, which are separate phases.
  double Computed() const {
    return time_kinds_.seconds(TimeKind::kForward) + time_kinds_.seconds(TimeKind::kBackward);
  }

  Stream* const compute_;
  Clock& clock_;
  TimeKindClock& time_kinds_;
  const plan::ScheduleShape& shape_;
  std::vector<Stretch> stretches_;
  std::vector<double> microbatch_seconds_;  // according to the phases
};

}  // namespace shoal::worker

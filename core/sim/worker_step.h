// One worker's step with synchronization step: its own pace from start to finish. Exact for the
// network of core/sim/network.h, without a queue of events: nothing another worker does changes it,
// so time is carried from use to use.
//
// It does what a real worker does (worker/exchange/service_source.h, service_sink.h): when use k
// asks for its weights, uses k + 1 to k + prefetch_units are started; a gradient goes out when its
// unit's backward is done, and the next one of its size waits while all buffers are in flight. Not
// simulated: credits of single servers, and servers that answer late.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/sim/links.h"
#include "core/sim/spans.h"
#include "core/sim/use_pattern.h"

namespace shoal::sim {

// How a worker spent its time: the first four add up to `finish`.
struct WorkerTimes {
  double compute = 0;
  double get_wait = 0;    // for weights
  double push_wait = 0;   // for buffers and acknowledgements
  double layer_wait = 0;  // for others at a layer (only synchronization layer)
  double finish = 0;      // when the last push is acknowledged

  bool operator==(const WorkerTimes&) const = default;
};

class WorkerStep {
 public:
  // `pattern` and `transfers` must outlive it. `spans` may be null.
  WorkerStep(const UsePattern& pattern, const TransferTimes& transfers, int64_t worker,
             SpanSink* spans);

  // Runs one more microbatch. `last`: none follows.
  void Run(const MicrobatchTime& time, bool last);
  // Same as above, if it is not known yet whether another one follows: nothing is fetched ahead for
  // that, and with push per step all gradients go out in Finish.
  void RunDrawn(const MicrobatchTime& time);
  // When the compute so far is done; pushes may be in flight.
  double now() const { return delay_ + base_; }
  // Waits for the pushes.
  WorkerTimes Finish();

 private:
  // When each buffer of a class is free again; they are used in turn.
  struct Buffers {
    std::vector<double> free_at;
    size_t next = 0;
  };

  void RunUses(const MicrobatchTime& time, int64_t expected, bool pushes);
  void Await(double moment, double& now, double& wait, TimeKind kind);
  void AwaitBuffer(BufferClass buffer, double& now);
  void StartPushes(size_t use, double& now);

  const UsePattern& pattern_;
  SpanWriter spans_;
  Links links_;
  // Now is delay_ + base_ + what this microbatch has computed: without waits, a worker's time is
  // exactly the sum of its microbatches' times.
  double delay_ = 0;
  double base_ = 0;
  WorkerTimes times_;
  int64_t microbatch_ = 0;
  bool unpushed_ = false;
  double pushed_ = 0;  // when all pushes so far are acknowledged
  std::array<Buffers, kBufferClasses> buffers_;
};

}  // namespace shoal::sim

#include "core/sim/worker_step.h"

#include <algorithm>

namespace shoal::sim {

WorkerStep::WorkerStep(const UsePattern& pattern, const TransferTimes& transfers, int64_t worker,
                       SpanSink* spans)
    : pattern_(pattern), spans_(spans, worker), links_(pattern, transfers) {
  for (size_t c = 0; c < buffers_.size(); ++c) {
    buffers_[c].free_at.assign(static_cast<size_t>(pattern.buffers[c]), 0.0);
  }
}

void WorkerStep::Await(double moment, double& now, double& wait, TimeKind kind) {
  if (moment > now) {
    if (spans_.enabled()) {
      spans_.Add(kind, microbatch_, now, moment);
    }
    wait += moment - now;
    delay_ += moment - now;
    now = moment;
  }
}

// With push per step each unit has its own buffer, which is free.
void WorkerStep::AwaitBuffer(BufferClass buffer, double& now) {
  if (!pattern_.push_per_step) {
    const Buffers& buffers = buffers_[static_cast<size_t>(buffer)];
    Await(buffers.free_at[buffers.next], now, times_.push_wait, TimeKind::kPushWait);
  }
}

void WorkerStep::StartPushes(size_t use, double& now) {
  const std::vector<Push>& pushes = pattern_.uses[use].pushes;
  for (size_t i = 0; i < pushes.size(); ++i) {
    AwaitBuffer(pushes[i].buffer, now);
    const double done = links_.StartPush(use, i, now);
    pushed_ = std::max(pushed_, done);
    Buffers& buffers = buffers_[static_cast<size_t>(pushes[i].buffer)];
    buffers.free_at[buffers.next] = done;
    buffers.next = buffers.next + 1 == buffers.free_at.size() ? 0 : buffers.next + 1;
  }
}

void WorkerStep::Run(const MicrobatchTime& time, bool last) {
  RunUses(time, microbatch_ + (last ? 1 : 2), !pattern_.push_per_step || last);
}

void WorkerStep::RunDrawn(const MicrobatchTime& time) {
  RunUses(time, microbatch_ + 1, !pattern_.push_per_step);
  unpushed_ = pattern_.push_per_step;
}

// `expected`: microbatches of this step known so far.
void WorkerStep::RunUses(const MicrobatchTime& time, int64_t expected, bool pushes) {
  links_.ExpectUses(expected * static_cast<int64_t>(pattern_.uses.size()));
  if (microbatch_ == 0) {
    links_.BeginStep();
  }
  for (size_t k = 0; k < pattern_.uses.size(); ++k) {
    const Use& use = pattern_.uses[k];
    double now = delay_ + (base_ + use.begin.Of(time));
    if (use.waits_for_block_buffer) {
      AwaitBuffer(BufferClass::kBlock, now);
    }
    Await(links_.Get(now), now, times_.get_wait, TimeKind::kGetWait);
    if (use.waits_for_head_buffer) {
      AwaitBuffer(BufferClass::kHead, now);
    }
    if (use.waits_for_embedding_buffer) {
      AwaitBuffer(BufferClass::kEmbedding, now);
    }
    double end = delay_ + (base_ + use.end.Of(time));
    if (spans_.enabled()) {
      spans_.Add(use.backward ? TimeKind::kBackward : TimeKind::kForward, microbatch_, now, end);
    }
    if (pushes) {
      StartPushes(k, end);
    }
  }
  base_ += time.total;
  times_.compute += time.total;
  ++microbatch_;
}

WorkerTimes WorkerStep::Finish() {
  double end = now();
  for (size_t k = 0; k < pattern_.uses.size() && unpushed_; ++k) {
    StartPushes(k, end);
  }
  Await(pushed_, end, times_.push_wait, TimeKind::kPushWait);
  if (spans_.enabled()) {
    spans_.Finish();
  }
  times_.finish = end;
  return times_;
}

}  // namespace shoal::sim

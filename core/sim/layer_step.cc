#include "core/sim/layer_step.h"

#include <algorithm>
#include <utility>

namespace shoal::sim {
namespace {

class LayerStep {
 public:
  LayerStep(const UsePattern& pattern, const TransferTimes& transfers, size_t workers,
            SpanSink* spans)
      : pattern_(pattern),
        links_(pattern, transfers),
        now_(workers, 0.0),
        delay_(workers, 0.0),
        base_(workers, 0.0),
        times_(workers) {
    for (size_t w = 0; w < workers && spans != nullptr; ++w) {
      spans_.emplace_back(spans, static_cast<int64_t>(w));
    }
  }

  void BeginStep(size_t microbatches) {
    links_.ExpectUses(static_cast<int64_t>(microbatches * pattern_.uses.size()));
    links_.BeginStep();
  }
  void Run(const std::vector<MicrobatchTime>& times, bool last);
  LayerStepResult Finish();

 private:
  double LastNow() const { return *std::max_element(now_.begin(), now_.end()); }
  void MoveTo(const Progress& progress, const std::vector<MicrobatchTime>& times);
  void Await(double moment);  // on every worker
  void PushAll(size_t use);

  const UsePattern& pattern_;
  Links links_;  // of the collectives
  std::vector<SpanWriter> spans_;
  // By worker; as in WorkerStep, now is delay + base + what this microbatch has computed.
  std::vector<double> now_, delay_, base_;
  std::vector<WorkerTimes> times_;
  int64_t microbatch_ = 0;
  double pushed_ = 0;  // when the previous push is done
  int64_t pushes_ = 0;
};

void LayerStep::MoveTo(const Progress& progress, const std::vector<MicrobatchTime>& times) {
  for (size_t w = 0; w < now_.size(); ++w) {
    now_[w] = delay_[w] + (base_[w] + progress.Of(times[w]));
  }
}

void LayerStep::Await(double moment) {
  for (size_t w = 0; w < now_.size(); ++w) {
    const double wait = std::max(moment - now_[w], 0.0);
    if (!spans_.empty() && wait > 0) {
      spans_[w].Add(TimeKind::kLayerWait, microbatch_, now_[w], moment);
    }
    times_[w].layer_wait += wait;
    delay_[w] += wait;
    now_[w] = std::max(now_[w], moment);
  }
}

void LayerStep::PushAll(size_t use) {
  for (size_t i = 0; i < pattern_.uses[use].pushes.size(); ++i) {
    Await(pushed_);
    pushed_ = links_.StartPush(use, i, LastNow());
    ++pushes_;
  }
}

void LayerStep::Run(const std::vector<MicrobatchTime>& times, bool last) {
  std::vector<double> begin;
  for (size_t k = 0; k < pattern_.uses.size(); ++k) {
    const Use& use = pattern_.uses[k];
    MoveTo(use.begin, times);
    Await(links_.Get(LastNow()));
    if (!spans_.empty()) {
      begin = now_;
    }
    MoveTo(use.end, times);
    for (size_t w = 0; w < spans_.size(); ++w) {
      spans_[w].Add(use.backward ? TimeKind::kBackward : TimeKind::kForward, microbatch_, begin[w],
                    now_[w]);
    }
    if (!pattern_.push_per_step || last) {
      PushAll(k);
    }
  }
  for (size_t w = 0; w < now_.size(); ++w) {
    base_[w] += times[w].total;
    times_[w].compute += times[w].total;
  }
  ++microbatch_;
}

LayerStepResult LayerStep::Finish() {
  Await(pushed_);
  for (size_t w = 0; w < now_.size(); ++w) {
    times_[w].finish = now_[w];
    if (!spans_.empty()) {
      spans_[w].Finish();
    }
  }
  return {std::move(times_), links_.fetches() + pushes_};
}

}  // namespace

LayerStepResult RunLayerStep(const UsePattern& pattern, const TransferTimes& transfers,
                             const std::vector<std::vector<MicrobatchTime>>& microbatches,
                             SpanSink* spans) {
  const size_t workers = microbatches.empty() ? 0 : microbatches.front().size();
  LayerStep step(pattern, transfers, workers, spans);
  step.BeginStep(microbatches.size());
  for (size_t m = 0; m < microbatches.size(); ++m) {
    step.Run(microbatches[m], m + 1 == microbatches.size());
  }
  return step.Finish();
}

}  // namespace shoal::sim

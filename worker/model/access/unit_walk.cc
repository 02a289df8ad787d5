#include "worker/model/access/unit_walk.h"

#include <optional>

#include "core/base/status.h"
#include "core/model/adapters.h"

namespace shoal::worker {
namespace {

// Holds a unit's weights, and releases them on destruction.
class Held {
 public:
  Held(UnitSource& source, int unit) : source_(source), unit_(unit), view_(source.Get(unit)) {}
  ~Held() {
    if (view_.ok()) {
      source_.Release(unit_);
    }
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  const absl::Status& status() const { return view_.status(); }

 private:
  UnitSource& source_;
  const int unit_;
  const absl::StatusOr<WeightsView> view_;
};

// Returns where the unit's gradient goes; empty if it is not wanted.
absl::StatusOr<std::span<float>> AccumulatorOf(GradientSink& sink, int unit) {
  return sink.Wants(unit) ? sink.Accumulator(unit) : std::span<float>();
}

// A unit, and those of its adapters, if it has any.
class HeldWithAdapters {
 public:
  HeldWithAdapters(const plan::ModelSpec& spec, UnitSource& source, int unit)
      : adapters_(AdaptersOf(spec, unit)), unit_(source, unit) {
    if (adapters_ >= 0 && unit_.status().ok()) {
      of_adapters_.emplace(source, adapters_);
    }
  }
  int adapters() const { return adapters_; }
  const absl::Status& status() const {
    return of_adapters_.has_value() ? of_adapters_->status() : unit_.status();
  }

 private:
  static int AdaptersOf(const plan::ModelSpec& spec, int unit) {
    return unit > 0 ? plan::AdapterUnit(spec, unit - 1) : -1;
  }

  const int adapters_;
  const Held unit_;
  std::optional<Held> of_adapters_;
};

absl::Status WalkHead(const plan::ModelSpec& spec, UnitSource& source, GradientSink& sink,
                      UnitWork* work) {
  const int head = static_cast<int>(spec.layers) + 1;
  const Held weights(source, head);
  SHOAL_RETURN_IF_ERROR(weights.status());
  std::optional<Held> tied;
  if (spec.tied_embeddings) {
    tied.emplace(source, 0);
    SHOAL_RETURN_IF_ERROR(tied->status());
  }
  SHOAL_ASSIGN_OR_RETURN(const std::span<float> accumulator, AccumulatorOf(sink, head));
  const bool adds_tied = spec.tied_embeddings && sink.Wants(0);
  if (adds_tied) {
    SHOAL_RETURN_IF_ERROR(sink.Accumulator(0).status());
  }
  if (work != nullptr) {
    work->Forward(head);
    work->Backward(head, accumulator);
  }
  SHOAL_RETURN_IF_ERROR(sink.Done(head));
  return adds_tied ? sink.DoneTied() : absl::OkStatus();
}

}  // namespace

absl::Status WalkUnits(const plan::ModelSpec& spec, UnitSource& source, GradientSink& sink,
                       UnitWork* work) {
  const int blocks = static_cast<int>(spec.layers);
  for (int unit = 0; unit <= blocks; ++unit) {
    const HeldWithAdapters weights(spec, source, unit);
    SHOAL_RETURN_IF_ERROR(weights.status());
    if (work != nullptr) {
      work->Forward(unit);
    }
  }
  SHOAL_RETURN_IF_ERROR(WalkHead(spec, source, sink, work));
  for (int unit = blocks; unit > 0; --unit) {
    SHOAL_ASSIGN_OR_RETURN(const std::span<float> accumulator, AccumulatorOf(sink, unit));
    int adapters = -1;
    {
      const HeldWithAdapters weights(spec, source, unit);
      SHOAL_RETURN_IF_ERROR(weights.status());
      if (work != nullptr) {
        work->Backward(unit, accumulator);
      }
      adapters = weights.adapters();
    }
    SHOAL_RETURN_IF_ERROR(sink.Done(unit));
    if (adapters >= 0) {
      SHOAL_RETURN_IF_ERROR(AccumulatorOf(sink, adapters).status());
      SHOAL_RETURN_IF_ERROR(sink.Done(adapters));
    }
  }
  SHOAL_ASSIGN_OR_RETURN(const std::span<float> accumulator, AccumulatorOf(sink, 0));
  if (work != nullptr) {
    work->Backward(0, accumulator);
  }
  return sink.Done(0);
}

}  // namespace shoal::worker

// Weights and gradients that pass through a device's memory, to test which events order what.
// Weights are copied in when they are requested, and overwritten with garbage as soon as they are
// released; gradients are copied out as soon as they are done, and overwritten then. All of that
// runs on a copy stream, concurrently with the compute.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "worker/backend/backend.h"
#include "worker/model/access/memory_unit_access.h"

namespace shoal::worker::testing_model {

inline constexpr std::byte kSpoilt{0xFF};  // NaN

class PassingUnitSource final : public UnitSource {
 public:
  PassingUnitSource(MemoryUnitSource weights, Device& device, Stream& compute)
      : weights_(std::move(weights)),
        device_(device),
        compute_(compute),
        copies_(device.NewStream(StreamKind::kCopy)) {}
  ~PassingUnitSource() override { copies_->Synchronize().IgnoreError(); }

  absl::StatusOr<WeightsView> Get(int unit) override {
    const WeightsView given = *weights_.Get(unit);
    weights_.Release(unit);
    const int64_t bytes = given.count * SizeOf(given.dtype);
    Buffer place = *device_.Allocate(bytes);
    copies_->Copy(place.data(), given.data, bytes);
    compute_.WaitFor(*copies_->Record());
    WeightsView there = given;
    there.data = place.data();
    held_[unit].push_back(std::move(place));
    return there;
  }
  void Release(int unit) override {
    Buffer place = std::move(held_[unit].back());
    held_[unit].pop_back();
    copies_->WaitFor(*compute_.Record());
    copies_->Fill(place.data(), kSpoilt, place.bytes());
    left_.push_back(std::move(place));
  }

 private:
  MemoryUnitSource weights_;
  Device& device_;
  Stream& compute_;
  std::map<int, std::vector<Buffer>> held_;
  std::vector<Buffer> left_;
  const std::unique_ptr<Stream> copies_;
};

// Keeps each contribution separately, in the order in which they were done.
class PassingGradientSink final : public GradientSink {
 public:
  struct Contribution {
    int unit = 0;
    std::vector<float> values;
  };

  PassingGradientSink(const std::vector<plan::UnitSpec>& units, Device& device, Stream& compute)
      : units_(units),
        device_(device),
        compute_(compute),
        copies_(device.NewStream(StreamKind::kCopy)) {}
  ~PassingGradientSink() override { copies_->Synchronize().IgnoreError(); }

  absl::StatusOr<std::span<float>> Accumulator(int unit) override {
    const UnitGradient gradient = *Gradient(unit);
    if (gradient.empty) {
      compute_.Zero(gradient.sums.data(), static_cast<int64_t>(gradient.sums.size_bytes()));
    }
    return gradient.sums;
  }
  absl::StatusOr<UnitGradient> Gradient(int unit) override {
    const auto count = static_cast<size_t>(units_[static_cast<size_t>(unit)].count);
    Buffer& place = filling_[unit];
    const bool empty = place.data() == nullptr;
    if (empty) {
      place = *device_.Allocate(static_cast<int64_t>(count * sizeof(float)));
      compute_.Fill(place.data(), kSpoilt, place.bytes());
    }
    return UnitGradient{.sums = std::span(reinterpret_cast<float*>(place.data()), count),
                        .empty = empty};
  }
  absl::Status Done(int unit) override {
    Buffer place = std::move(filling_.at(unit));
    filling_.erase(unit);
    Contribution& done = contributions_.emplace_back();
    done.unit = unit;
    done.values.resize(static_cast<size_t>(place.bytes()) / sizeof(float));
    copies_->WaitFor(*compute_.Record());
    copies_->Copy(done.values.data(), place.data(), place.bytes());
    copies_->Fill(place.data(), kSpoilt, place.bytes());
    left_.push_back(std::move(place));
    return absl::OkStatus();
  }

  // Waits for the contributions.
  const std::deque<Contribution>& contributions() {
    copies_->Synchronize().IgnoreError();
    return contributions_;
  }

 private:
  const std::vector<plan::UnitSpec> units_;
  Device& device_;
  Stream& compute_;
  std::map<int, Buffer> filling_;
  std::deque<Contribution> contributions_;  // copied to until contributions()
  std::vector<Buffer> left_;
  const std::unique_ptr<Stream> copies_;
};

}  // namespace shoal::worker::testing_model

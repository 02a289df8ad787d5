#include "core/plan/schedule/layer_split.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "core/base/status.h"

namespace shoal::plan {
namespace {

constexpr int64_t kExhaustiveSplits = 10000;
constexpr double kGain = 1 - 1e-12;  // a gain below rounding is none

// How many units each virtual stage has.
using Counts = std::vector<int>;

std::vector<UnitRange> RangesOf(const Counts& counts) {
  std::vector<UnitRange> ranges;
  int first = 0;
  for (const int count : counts) {
    ranges.push_back({.first = first, .count = count});
    first += count;
  }
  return ranges;
}

class Splitter {
 public:
  Splitter(std::span<const double> costs, const ScheduleShape& shape)
      : costs_(costs), shape_(shape), units_(static_cast<int>(costs.size())) {
    before_.push_back(0);
    for (const double cost : costs) {
      before_.push_back(before_.back() + cost);
    }
    for (int place = 0; place < shape.VirtualStages(); ++place) {
      stage_of_.push_back(shape.At(place).stage);
    }
    sums_.resize(shape.stages);
  }

  double CostOf(const Counts& counts) {
    std::ranges::fill(sums_, 0.0);
    double chunk = 0;
    int first = 0;
    for (size_t place = 0; place < counts.size(); ++place) {
      const double cost = before_[first + counts[place]] - before_[first];
      first += counts[place];
      chunk = std::max(chunk, cost);
      sums_[stage_of_[place]] += cost;
    }
    return std::ranges::max(sums_) + chunk / 4;
  }

  // Returns the best of all splits, tried one after the other.
  Counts Exhaustive() {
    Counts counts(stage_of_.size(), 1);
    counts.back() = units_ - static_cast<int>(counts.size()) + 1;
    Counts best = counts;
    double least = CostOf(counts);
    while (Advance(counts)) {
      if (const double cost = CostOf(counts); cost < least * kGain) {
        least = cost;
        best = counts;
      }
    }
    return best;
  }

  int64_t Splits() const {
    const auto cuts = static_cast<int64_t>(stage_of_.size()) - 1;
    int64_t splits = 1;
    for (int64_t cut = 1; cut <= cuts && splits <= kExhaustiveSplits; ++cut) {
      splits = splits * (units_ - cut) / cut;
    }
    return splits;
  }

  // Returns the best split if all units between the first and the last cost the same, here their
  // mean.
  Counts AlikeUnits() {
    const double mean = units_ > 2 ? (before_[units_ - 1] - before_[1]) / (units_ - 2) : 0;
    Counts best;
    double least = std::numeric_limits<double>::max();
    for (const double extra : {0.0, costs_.front(), costs_.back()}) {
      for (int count = 0; count <= units_; ++count) {
        const Counts counts = Filled(mean, extra + count * mean);
        if (counts.empty()) {
          continue;
        }
        if (const double cost = CostOf(counts); best.empty() || cost < least * kGain) {
          least = cost;
          best = counts;
        }
      }
    }
    return best;
  }

  // Moves units from one virtual stage to another, shifting those in between by one, as long as it
  // helps.
  Counts Improved(Counts counts) {
    double least = CostOf(counts);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t from = 0; from < counts.size(); ++from) {
        for (size_t to = 0; to < counts.size() && counts[from] > 1; ++to) {
          --counts[from];
          ++counts[to];
          if (const double cost = CostOf(counts); cost < least * kGain) {
            least = cost;
            moved = true;
          } else {
            ++counts[from];
            --counts[to];
          }
        }
      }
    }
    return counts;
  }

 private:
  // Advances to the next composition of the same sum.
  static bool Advance(Counts& counts) {
    size_t place = counts.size();
    // The last virtual stage with more than one unit gives all but one to the end, and one to the
    // virtual stage before it.
    while (place > 1 && counts[place - 1] == 1) {
      --place;
    }
    if (place <= 1) {
      return false;
    }
    const int rest = counts[place - 1] - 1;
    counts[place - 1] = 1;
    ++counts[place - 2];
    counts.back() += rest - 1;
    return true;
  }

  // Assigns units that cost `mean` (the first and the last their own cost) one by one to the stage
  // with the smallest sum, there to its cheapest chunk; no chunk may cost more than `limit`. Empty
  // if that is impossible.
  Counts Filled(double mean, double limit) {
    const size_t places = stage_of_.size();
    const double allowed = limit * (1 + 1e-9);
    Counts counts(places, 1);
    std::vector<double> chunks(places, mean);
    chunks.front() = costs_.front();
    chunks.back() = places > 1 ? costs_.back() : costs_.front() + costs_.back();
    int left = units_ - static_cast<int>(places);
    if (places == 1) {
      counts[0] = std::min(2, units_);
      left = units_ - counts[0];
    }
    std::ranges::fill(sums_, 0.0);
    for (size_t place = 0; place < places; ++place) {
      if (chunks[place] > allowed) {
        return {};
      }
      sums_[stage_of_[place]] += chunks[place];
    }
    for (; left > 0; --left) {
      size_t chosen = places;
      for (size_t place = 0; place < places; ++place) {
        if (chunks[place] + mean <= allowed &&
            (chosen == places || std::pair(sums_[stage_of_[place]], chunks[place]) <
                                     std::pair(sums_[stage_of_[chosen]], chunks[chosen]))) {
          chosen = place;
        }
      }
      if (chosen == places) {
        return {};
      }
      ++counts[chosen];
      chunks[chosen] += mean;
      sums_[stage_of_[chosen]] += mean;
    }
    return counts;
  }

  std::span<const double> costs_;
  ScheduleShape shape_;
  int units_;
  std::vector<double> before_;  // the cost of all units before this
  std::vector<int> stage_of_;   // by virtual stage
  std::vector<double> sums_;    // by stage
};

}  // namespace

double SplitCost(std::span<const double> unit_costs, std::span<const UnitRange> split, int stages,
                 int chunks, Placement placement) {
  Counts counts;
  for (const UnitRange& range : split) {
    counts.push_back(range.count);
  }
  return Splitter(unit_costs, {.stages = stages, .chunks = chunks, .placement = placement})
      .CostOf(counts);
}

absl::StatusOr<std::vector<UnitRange>> SplitLayers(std::span<const double> unit_costs, int stages,
                                                   int chunks, Placement placement) {
  const ScheduleShape shape{.stages = stages, .chunks = chunks, .placement = placement};
  if (stages < 1 || chunks < 1) {
    return InvalidArgument("{} stages of {} chunks: at least one of each is needed", stages,
                           chunks);
  }
  if (static_cast<int64_t>(unit_costs.size()) < int64_t{stages} * chunks) {
    return InvalidArgument(
        "{} units (the embedding, the blocks and the head) cannot be split over {} stages of {} "
        "chunks: use fewer stages or chunks",
        unit_costs.size(), stages, chunks);
  }
  Splitter splitter(unit_costs, shape);
  if (splitter.Splits() <= kExhaustiveSplits) {
    return RangesOf(splitter.Exhaustive());
  }
  return RangesOf(splitter.Improved(splitter.AlikeUnits()));
}

}  // namespace shoal::plan

#include "core/plan/schedule/builders/choice.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::plan {
namespace {

constexpr std::array<std::pair<std::string_view, ScheduleKind>, 12> kNames = {
    {{"GPipe", ScheduleKind::kGPipe},
     {"1F1B", ScheduleKind::kOneForwardOneBackward},
     {"interleaved", ScheduleKind::kInterleaved},
     {"GIS", ScheduleKind::kGrouped},
     {"GIS-H", ScheduleKind::kGroupedHalf},
     {"PO", ScheduleKind::kUniform},
     {"ZB-H1", ScheduleKind::kZeroBubbleH1},
     {"ZB-H2", ScheduleKind::kZeroBubbleH2},
     {"ZB-V", ScheduleKind::kZeroBubbleV},
     {"V-Half", ScheduleKind::kVHalf},
     {"V-Min", ScheduleKind::kVMin},
     {"accumulation", ScheduleKind::kAccumulation}}};

bool SameName(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

// Returns the g of "GIS(g)", 0 for anything else.
int GroupIn(std::string_view name) {
  constexpr std::string_view kPrefix = "GIS(";
  if (name.size() < kPrefix.size() + 2 || !SameName(name.substr(0, kPrefix.size()), kPrefix) ||
      name.back() != ')') {
    return 0;
  }
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size() - 1;
  int group = 0;
  const auto [stop, error] = std::from_chars(begin, end, group);
  return error == std::errc() && stop == end && group > 0 ? group : 0;
}

bool OneChunk(ScheduleKind kind) {
  return kind == ScheduleKind::kOneForwardOneBackward || kind == ScheduleKind::kZeroBubbleH1 ||
         kind == ScheduleKind::kZeroBubbleH2;
}

int GroupOf(const ScheduleChoice& choice, int stages) {
  if (choice.kind == ScheduleKind::kGroupedHalf) {
    return SmallestGroup(stages);
  }
  return choice.group == 0 ? stages : choice.group;
}

UniformStretch StretchOf(const ScheduleShape& shape, const ScheduleCosts& costs) {
  UniformStretch stretch{.longest_chunk = 0, .longest_pass = 0};
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    double forwards = 0;
    double backwards = 0;
    for (int stage = 0; stage < shape.stages; ++stage) {
      double compute = 0;
      for (int microbatch = 0; microbatch < shape.microbatches; ++microbatch) {
        const ChunkCost& cost = costs.Of(stage, chunk, microbatch);
        compute += cost.Compute();
        forwards += cost.forward;
        backwards += cost.backward_input;
      }
      stretch.longest_chunk = std::max(stretch.longest_chunk, compute);
    }
    stretch.longest_pass = std::max({stretch.longest_pass, forwards, backwards});
  }
  // If nothing takes time, there is nothing to stretch for.
  return stretch.longest_chunk > 0 ? stretch : UniformStretch{};
}

}  // namespace

std::string ToString(const ScheduleChoice& choice) {
  if (choice.kind == ScheduleKind::kGrouped && choice.group > 0) {
    return fmt::format("GIS({})", choice.group);
  }
  for (const auto& [name, kind] : kNames) {
    if (kind == choice.kind) {
      return std::string(name);
    }
  }
  return "unknown";
}

absl::StatusOr<ScheduleChoice> ParseScheduleName(std::string_view name) {
  std::string all;
  for (const auto& [candidate, kind] : kNames) {
    if (SameName(name, candidate)) {
      return ScheduleChoice{.kind = kind};
    }
    all += fmt::format("{}, ", candidate);
  }
  if (const int group = GroupIn(name); group > 0) {
    return ScheduleChoice{.kind = ScheduleKind::kGrouped, .group = group};
  }
  return InvalidArgument("'{}' is no schedule; there are {}GIS(g) with g microbatches to a group",
                         name.substr(0, 60), all);
}

Placement PlacementOf(const ScheduleChoice& choice) {
  const bool v_shaped = choice.kind == ScheduleKind::kZeroBubbleV ||
                        choice.kind == ScheduleKind::kVHalf || choice.kind == ScheduleKind::kVMin;
  return v_shaped ? Placement::kVShaped : Placement::kLooped;
}

absl::Status CheckChoice(const ScheduleChoice& choice, int stages, int chunks) {
  if (stages < 1 || chunks < 1) {
    return InvalidArgument("{} stages of {} chunks: at least one of each is needed", stages,
                           chunks);
  }
  if (OneChunk(choice.kind) && chunks != 1) {
    return InvalidArgument("{} has one chunk for each stage, not {}", ToString(choice), chunks);
  }
  if (PlacementOf(choice) == Placement::kVShaped && chunks != 2) {
    return InvalidArgument("{} has two chunks for each stage, not {}", ToString(choice), chunks);
  }
  if (choice.kind == ScheduleKind::kAccumulation && stages != 1) {
    return InvalidArgument("{} is for one stage, not for {}", ToString(choice), stages);
  }
  const int group = GroupOf(choice, stages);
  if (choice.kind == ScheduleKind::kGrouped && (group < SmallestGroup(stages) || group > stages)) {
    return InvalidArgument("{}: {} stages take groups of {} to {} microbatches", ToString(choice),
                           stages, SmallestGroup(stages), stages);
  }
  return absl::OkStatus();
}

Schedule BuildSchedule(const ScheduleChoice& choice, int stages, int chunks, int microbatches,
                       const ScheduleCosts* costs) {
  SHOAL_CHECK(CheckChoice(choice, stages, chunks).ok());
  const ScheduleShape shape{.stages = stages, .chunks = chunks, .microbatches = microbatches};
  switch (choice.kind) {
    case ScheduleKind::kGPipe:
      return GPipe(stages, chunks, microbatches);
    case ScheduleKind::kOneForwardOneBackward:
      return OneForwardOneBackward(stages, microbatches);
    case ScheduleKind::kInterleaved:
      return InterleavedOneForwardOneBackward(stages, chunks, microbatches);
    case ScheduleKind::kGrouped:
    case ScheduleKind::kGroupedHalf:
      return GroupedInterleaved(stages, chunks, microbatches, GroupOf(choice, stages));
    case ScheduleKind::kUniform:
      return UniformPipe(stages, chunks, microbatches,
                         costs == nullptr ? UniformStretch{} : StretchOf(shape, *costs));
    case ScheduleKind::kZeroBubbleH1:
      return ZeroBubbleH1(stages, microbatches);
    case ScheduleKind::kZeroBubbleH2:
      return ZeroBubbleH2(stages, microbatches);
    case ScheduleKind::kZeroBubbleV:
      return ZeroBubbleV(stages, microbatches, costs);
    case ScheduleKind::kVHalf:
      return VHalf(stages, microbatches, costs);
    case ScheduleKind::kVMin:
      return VMin(stages, microbatches, costs);
    case ScheduleKind::kAccumulation:
      return GradientAccumulation(chunks, microbatches);
  }
  SHOAL_CHECK(false);
}

}  // namespace shoal::plan

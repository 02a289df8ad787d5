#include "bench/pipeline/paper.h"

namespace shoal::bench {

std::vector<PaperOffloadRatios> OffloadRatiosOfPaper() {
  return {{4096, {1.70, 1.46, 1.15, .80}}, {5120, {1.40, 1.23, 1.00, .72}},
          {6144, {1.19, 1.07, .88, .66}},  {7168, {1.03, .94, .80, .61}},
          {8192, {.92, .84, .72, .56}},    {10240, {.74, .69, .61, .49}}};
}

// The text of the figure tells only indirectly which row is which model.
std::vector<PaperRow> ScheduleRowsOfPaper() {
  const auto row = [](std::string_view model, int sequence, std::array<PaperCell, 6> cells) {
    PaperRow result{.model = model, .sequence = sequence, .cells = cells};
    if (model == "10.5B") {
      result.layers = 38, result.heads = 40, result.hidden = 5120;
      result.microbatches = 64, result.stages = 8;
    } else if (model == "18.1B") {
      result.layers = 46, result.heads = 48, result.hidden = 6144;
      result.microbatches = 128, result.stages = 16;
    } else {
      result.layers = 62, result.heads = 64, result.hidden = 8192;
      result.microbatches = 256, result.stages = 32;
    }
    return result;
  };
  return {
      row("10.5B", 4096, {{{65, 15}, {65, 13}, {63, 8}, {59, 3}, {}, {57, 12}}}),
      row("10.5B", 8192, {{{68, 30}, {68, 27}, {65, 16}, {61, 6}, {}, {59, 24}}}),
      row("10.5B", 16384, {{{}, {}, {68, 32}, {63, 12}, {59, 9}, {62, 48}}}),
      row("10.5B", 32768, {{{}, {}, {}, {65, 24}, {64, 14}, {}}}),
      row("18.1B", 4096, {{{64, 24}, {65, 19}, {63, 13}, {59, 4}, {}, {56, 18}}}),
      row("18.1B", 8192, {{{66, 49}, {67, 38}, {66, 25}, {62, 8}, {}, {58, 37}}}),
      row("18.1B", 16384, {{{}, {}, {59, 51}, {64, 15}, {61, 9}, {}}}),
      row("18.1B", 32768, {{{}, {}, {}, {65, 27}, {65, 15}, {}}}),
      row("42.9B", 4096, {{{63, 49}, {65, 34}, {64, 25}, {62, 10}, {58, 5}, {55, 33}}}),
      row("42.9B", 8192, {{{}, {}, {62, 51}, {63, 20}, {60, 8}, {}}}),
      row("42.9B", 16384, {{{}, {}, {}, {63, 41}, {65, 12}, {}}}),
  };
}

}  // namespace shoal::bench

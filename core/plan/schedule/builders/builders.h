// The known schedules, as pure functions from a shape to the table of
// core/plan/schedule/schedule.h, including messages. They support any number of stages (odd ones
// too), chunks and microbatches: a pattern that needs whole groups is built for whole groups, and
// then loses the microbatches that do not exist, which cannot introduce a deadlock.
//
// d stages, v chunks, m microbatches, stage i; F, B, W the times of one chunk; a unit of memory is
// one chunk's activations of one microbatch.
#pragma once

#include "core/plan/schedule/schedule.h"
#include "core/plan/schedule/schedule_costs.h"

namespace shoal::plan {

// All forwards, then all joined backwards (Huang et al. 2019); with several chunks breadth first.
// Memory m v.
Schedule GPipe(int stages, int chunks, int microbatches);

// One chunk; d - i forwards ahead, then alternately one backward and one forward. Memory d - i,
// bubble (d - 1)(F + B + W).
Schedule OneForwardOneBackward(int stages, int microbatches);

// Megatron's interleaved 1F1B: chunks in turn for groups of d microbatches, joined backward. Memory
// of stage i d(v - 1) + 2(d - i) - 1, bubble (d - 1)(F + B + W).
Schedule InterleavedOneForwardOneBackward(int stages, int chunks, int microbatches);

// GIS(g) of PipeOffload: groups of g microbatches, ceil(d / 2) <= g <= d, backward split with W
// right after B.
//
//   memory   g(v - 1) + d - i
//   bubble   (d - 1)(F + B) + (v - 1)((d - g) F + max(0, d B - g (B + W)))
Schedule GroupedInterleaved(int stages, int chunks, int microbatches, int group);

// Returns the smallest group for a number of stages: GIS-H.
int SmallestGroup(int stages);

// How far to stretch the block of PipeOffload's uniform schedule so that unequal costs do not break
// its pattern: the slowest chunk against the longest way through a virtual pass. Equal costs need
// no stretch.
struct UniformStretch {
  double longest_chunk = 3;  // the largest F + B + W of a chunk
  double longest_pass = 0;   // the larger of the sums over stages of F and of B
};

// PipeOffload's uniform repetition of GIS-H's block: microbatch n begins 3v slots after microbatch
// n - 1. core/plan/schedule/builders/offload.h adds its offloads.
Schedule UniformPipe(int stages, int chunks, int microbatches, UniformStretch stretch = {});

// Zero bubble (Qi et al. 2023), one chunk: W is postponed to where the stage would wait. H1 uses
// the memory of 1F1B (d), H2 about twice that (2d - 1).
Schedule ZeroBubbleH1(int stages, int microbatches);
Schedule ZeroBubbleH2(int stages, int microbatches);

// Forwards and the loss alone, of what training places so: each stage runs a microbatch's chunks
// as soon as it can, later ones first. Memory 1.
Schedule ForwardAlone(const ScheduleShape& shape);

// One stage: each microbatch forward and back through all its chunks, joined backward. Memory v;
// what is offloaded in the forward is reloaded in the backward.
Schedule GradientAccumulation(int chunks, int microbatches);

// V-shaped, two chunks (Qi et al. 2024), with equal memory on all stages: about 2d (ZB-V), d
// (V-Half) and 2d / 3 (V-Min). Their order is made for `costs`; none: all passes take the same
// time.
Schedule ZeroBubbleV(int stages, int microbatches, const ScheduleCosts* costs = nullptr);
Schedule VHalf(int stages, int microbatches, const ScheduleCosts* costs = nullptr);
Schedule VMin(int stages, int microbatches, const ScheduleCosts* costs = nullptr);

}  // namespace shoal::plan

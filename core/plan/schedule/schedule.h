// The schedule of a pipeline as data: for each stage the ordered list of what it does with which
// chunk of layers and which microbatch. One table has four users: the planner writes it
// (core/plan/schedule/builders), the simulator times it (core/plan/schedule/schedule_simulation.h),
// the runtime executes it as it is written, and the timeline draws it. Pure values: no threads, no
// clock, no I/O.
//
// How a stage's list is executed. The stage walks its list in order.
//  - Compute (forward, backward) runs on one compute stream, in the order of the list, each action
//  when its inputs are
//    there: what it receives has arrived and what was offloaded is reloaded.
//  - A send or receive is posted when the walk reaches it and waited for by nobody but its user: a
//  send goes when its
//    producer has ended, a receive is waited for by its consumer. Between two stages the
//    activations form one queue for each direction and the gradients another; the sends of a queue
//    are in the order of its receives.
//  - Offload and reload are copies on a copy stream, in the order of the list. A copy begins when
//  all compute before it in
//    the list has ended. Release waits for its offload, then gives the device memory back, so
//    compute behind it waits with it; prepare takes the device memory that its reload fills.
// Memory. A chunk's activations of a microbatch take device memory from the begin of the forward to
// the end of the backward for the weights (or of the joined backward), but not from release to
// prepare; what a backward for the input leaves for the one for the weights takes it from the begin
// of the one to the end of the other. On the host the activations take memory from the offload to
// the backward for the input, which waits for their reload. All of it is taken and given back where
// the walk is, so what a stage needs depends on the order of its list and on nothing's speed.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::plan {

enum class Operation : uint8_t {
  kForward,            // F
  kBackwardInput,      // B: the gradient of the chunk's input, which the stage before waits for
  kBackwardWeights,    // W: the gradient of the chunk's weights, which nobody waits for
  kBackward,           // B and W joined
  kSendActivation,     // the output of this forward, to the stage with the next virtual stage
  kReceiveActivation,  // the input of this forward
  kSendGradient,  // the gradient of this chunk's input, to the stage with the virtual stage before
  kReceiveGradient,  // the gradient of this chunk's output
  kOffload,          // begins to copy the activations from device to host memory
  kRelease,          // gives back their device memory when the offload has ended
  kPrepare,          // takes device memory for their return
  kReload,           // begins to copy them from host to device memory
};
inline constexpr int kOperations = 12;

// "forward", "backward_input", ...
std::string_view NameOf(Operation operation);

bool IsCompute(Operation operation);
bool IsSend(Operation operation);
bool IsReceive(Operation operation);
bool IsBackwardForInput(Operation operation);    // B, alone or joined
bool IsBackwardForWeights(Operation operation);  // W, alone or joined

struct Action {
  Operation operation = Operation::kForward;
  int chunk = 0;  // the stage's own, from 0
  int microbatch = 0;

  auto operator<=>(const Action&) const = default;
};

// "forward chunk 1 microbatch 7"
std::string NameOf(const Action& action);

// Which chunks of the model's layers a stage holds.
enum class Placement : uint8_t {
  kLooped,   // chunk c of stage i is virtual stage c * stages + i
  kVShaped,  // odd chunks run back, so that the last stage hands to itself: ... * stages + (stages
             // - 1 - i)
};

struct VirtualStage {
  int stage = 0;
  int chunk = 0;

  bool operator==(const VirtualStage&) const = default;
};

struct ScheduleShape {
  int stages = 1;
  int chunks = 1;  // of each stage
  int microbatches = 1;
  Placement placement = Placement::kLooped;

  bool operator==(const ScheduleShape&) const = default;

  int VirtualStages() const { return stages * chunks; }
  // Where in the model a stage's chunk is, from 0 (with the embedding) to VirtualStages() - 1 (with
  // the head).
  int VirtualStageOf(int stage, int chunk) const;
  VirtualStage At(int virtual_stage) const;
};

// A message of a virtual stage is one to another stage: at the turns of a V, and with a single
// stage, the next virtual stage is on the same one, and nothing is sent.
bool SendsActivation(const ScheduleShape& shape, int virtual_stage);
bool SendsGradient(const ScheduleShape& shape, int virtual_stage);

using StageActions = std::vector<Action>;

struct Schedule {
  std::string name;  // as people know it: "1F1B", "GIS(4)", "PO-H"
  ScheduleShape shape;
  std::vector<StageActions> stages;
};

// The schedule with sends and receives: each send right behind its producer, each receive as late
// as its consumer and the order of its queue allow, one compute action ahead. Takes a list without
// messages.
void AddMessages(Schedule& schedule);

// Messages over all stages (sends alone).
int64_t CountSends(const Schedule& schedule);

// The largest number of (chunk, microbatch) whose activations are on the device at once, by the
// order of the list.
int PeakActivations(const StageActions& actions);

}  // namespace shoal::plan

// The schedule of a pipeline as data: for each stage the ordered list of what it does with which
// chunk of layers and which microbatch. One table has four users: the planner writes it
// (core/plan/schedule/builders), the simulator times it (core/plan/schedule/schedule_simulation.h),
// the runtime executes it as it is written, and the timeline draws it. Pure values: no threads, no
// clock, no I/O.
//
// How a stage executes its list. It walks the list in order.
// - Compute (forward, backward) runs on one compute stream, in the order of the list. Each action
//   starts when its inputs are there: what it receives has arrived and what was offloaded is
//   reloaded.
// - A send or receive is posted when the walk reaches it, and only its user waits for it: a send
//   goes when its producer has ended, a consumer waits for its receive. Between two stages the
//   activations form one queue for each direction and the gradients another; the sends of a queue
//   are in the order of its receives.
// - Offload and reload are copies on a copy stream, in the order of the list. A copy begins when
//   all compute before it in the list has ended.
// - Release waits for its offload, then frees the device memory, so later compute in the list waits
//   with it. Prepare takes the device memory that its reload fills.
//
// Memory. All of it is taken and freed where the walk is, so a stage's need depends only on the
// order of its list, never on speed.
// - A chunk's activations of a microbatch take device memory from the start of the forward to the
//   end of the backward for the weights (or of the joined backward), except from release to
//   prepare.
// - What a backward for the input leaves for the one for the weights takes device memory from the
//   start of the former to the end of the latter.
// - On the host the activations take memory from the offload to the backward for the input, which
//   waits for their reload.
//
// A schedule that evaluates has forwards alone. The last chunk's forward takes the loss too, and a
// release after each frees its activations.
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
  // the gradient of this chunk's input, to the stage with the previous virtual stage
  kSendGradient,
  kReceiveGradient,  // the gradient of this chunk's output
  kOffload,          // starts to copy the activations from device to host memory
  kRelease,          // frees their device memory, when an offload of them has ended
  kPrepare,          // takes device memory for their return
  kReload,           // starts to copy them from host to device memory
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
  int chunk = 0;  // among the stage's own, from 0
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
  // The position of a stage's chunk in the model, from 0 (with the embedding) to VirtualStages() -
  // 1 (with the head).
  int VirtualStageOf(int stage, int chunk) const;
  VirtualStage At(int virtual_stage) const;
};

// Whether a virtual stage sends a message, which goes to another stage: at the turns of a V, and
// with a single stage, the next virtual stage is on the same stage, and nothing is sent.
bool SendsActivation(const ScheduleShape& shape, int virtual_stage);
bool SendsGradient(const ScheduleShape& shape, int virtual_stage);

using StageActions = std::vector<Action>;

struct Schedule {
  std::string name;  // the known name: "1F1B", "GIS(4)", "PO-H"
  ScheduleShape shape;
  std::vector<StageActions> stages;
  bool evaluates = false;  // nothing is trained
};

// Adds sends and receives to a schedule without messages: each send right after its producer, each
// receive as late as its consumer and the order of its queue allow, one compute action ahead.
void AddMessages(Schedule& schedule);

// Counts messages over all stages (each send once).
int64_t CountSends(const Schedule& schedule);

// Returns the largest number of (chunk, microbatch) whose activations are on the device at once, by
// the order of the list.
int PeakActivations(const StageActions& actions);

}  // namespace shoal::plan

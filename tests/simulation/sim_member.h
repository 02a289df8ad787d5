// A server's or worker's process as the coordinator sees it: registers, renews its lease as
// rpc::MemberSession does, leaves, and is started again where processes stay.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/rpc/member_core.h"
#include "proto/coordinator.pb.h"
#include "tests/simulation/sim_context.h"
#include "tests/simulation/sim_coordinator.h"
#include "tests/simulation/sim_options.h"
#include "tests/simulation/sim_process.h"

namespace shoal::simulation {

class SimMember {
 public:
  SimMember(SimContext& context, const SimOptions& options, SimCoordinator& coordinator,
            SimProcess& process, proto::Role role, int index);
  virtual ~SimMember() = default;
  SimMember(const SimMember&) = delete;
  SimMember& operator=(const SimMember&) = delete;

  // A new process.
  void Start();
  // It is told to leave, and has so long for it.
  virtual void Drain(absl::Duration grace);
  // It is gone without a word; started again after so long (kNever: it is not).
  void Kill(Nanoseconds until_start);

  int index() const { return index_; }
  uint64_t incarnation() const { return incarnation_; }
  bool registered() const { return registered_; }
  const SimProcess& process() const { return process_; }
  SimProcess& process() { return process_; }

  std::function<void()> on_registered = [] {};

 protected:
  static constexpr const char* kToldTo = "it was told to";
  virtual void OnRegistered() {}
  // Leaves in order, and ends.
  void Leave(const std::string& why);
  // Whether it ends at this point, to be started again.
  bool EndsAt(const char* point);

  SimContext& context_;
  const SimOptions& options_;
  SimCoordinator& coordinator_;
  SimProcess& process_;

 private:
  void Register();
  proto::RegisterRequest MakeRequest() const;
  // Does what rpc::MemberCore says, when it says it.
  void Keep();
  void Act();
  // Unless there is one.
  void HoldConnection();
  // `answered`: when the coordinator did last.
  void AskToLeave(absl::Time answered);
  void StartAfter(Nanoseconds delay);

  const proto::Role role_;
  const int index_;
  bool retired_ = false;
  uint64_t nonce_ = 0;
  bool registered_ = false;
  bool leaving_ = false;
  bool connected_ = false;
  int64_t keeps_ = 0;  // the newest is the one that counts
  bool asks_to_leave_ = false;
  int crashes_ = 0;  // at named points
  uint64_t incarnation_ = 0;
  std::optional<rpc::MemberCore> core_;  // once registered
};

}  // namespace shoal::simulation

// Who may call what, where certificates say who calls: a row for each method. A method without one
// does not build (services.cc).
#pragma once

#include <iterator>

#include "core/rpc/certificates/identity.h"
#include "proto/coordinator.pb.h"
#include "proto/server.pb.h"
#include "proto/worker.pb.h"

namespace shoal::rpc {

template <Role... kCallers>
struct Callers {
  static constexpr Role kAll[] = {kCallers...};
};

template <typename Request>
struct CallersOf;  // the method that takes such requests

template <>
struct CallersOf<proto::SubmitJobRequest> : Callers<Role::kClient> {};
template <>
struct CallersOf<proto::StopJobRequest> : Callers<Role::kClient> {};
template <>
struct CallersOf<proto::GetStatusRequest> : Callers<Role::kClient> {};
template <>
struct CallersOf<proto::ListJobsRequest> : Callers<Role::kClient> {};
template <>
struct CallersOf<proto::ReadLogRequest> : Callers<Role::kClient> {};
template <>
struct CallersOf<proto::ScaleRequest> : Callers<Role::kClient> {};
template <>
struct CallersOf<proto::WatchJobRequest> : Callers<Role::kClient> {};
template <>
struct CallersOf<proto::RegisterRequest> : Callers<Role::kServer, Role::kWorker> {};
template <>
struct CallersOf<proto::RenewLeaseRequest> : Callers<Role::kServer, Role::kWorker> {};
template <>
struct CallersOf<proto::LeaveRequest> : Callers<Role::kServer, Role::kWorker> {};
template <>
struct CallersOf<proto::HoldConnectionRequest> : Callers<Role::kServer, Role::kWorker> {};
template <>
struct CallersOf<proto::JoinJobRequest> : Callers<Role::kWorker> {};
template <>
struct CallersOf<proto::NextStepRequest> : Callers<Role::kWorker> {};
template <>
struct CallersOf<proto::DrawMicrobatchRequest> : Callers<Role::kWorker> {};

template <>
struct CallersOf<proto::TakeOverRequest> : Callers<Role::kCoordinator> {};
template <>
struct CallersOf<proto::ConfigureRequest> : Callers<Role::kCoordinator> {};
template <>
struct CallersOf<proto::BeginAttemptRequest> : Callers<Role::kCoordinator> {};
template <>
struct CallersOf<proto::PrepareRequest> : Callers<Role::kCoordinator> {};
template <>
struct CallersOf<proto::CommitRequest> : Callers<Role::kCoordinator> {};
template <>
struct CallersOf<proto::WriteCheckpointRequest> : Callers<Role::kCoordinator> {};
template <>
struct CallersOf<proto::GetChecksumsRequest> : Callers<Role::kCoordinator> {};
template <>
struct CallersOf<proto::AdmitClientsRequest> : Callers<Role::kCoordinator> {};
template <>
struct CallersOf<proto::FenceClientRequest> : Callers<Role::kCoordinator> {};
template <>
struct CallersOf<proto::ReleaseJobRequest> : Callers<Role::kCoordinator> {};
template <>
struct CallersOf<proto::ReserveRequest> : Callers<Role::kCoordinator> {};
template <>
struct CallersOf<proto::FetchRequest> : Callers<Role::kCoordinator> {};
template <>
struct CallersOf<proto::ReplicateRequest> : Callers<Role::kCoordinator> {};
template <>
struct CallersOf<proto::ReadStateRequest> : Callers<Role::kServer> {};
template <>
struct CallersOf<proto::ConnectStateRequest> : Callers<Role::kServer> {};
template <>
struct CallersOf<proto::TakeGradientRequest> : Callers<Role::kServer> {};
template <>
struct CallersOf<proto::ConnectRequest> : Callers<Role::kWorker> {};

template <>
struct CallersOf<proto::ConnectStageRequest> : Callers<Role::kWorker> {};
template <>
struct CallersOf<proto::JoinRendezvousRequest> : Callers<Role::kWorker> {};

// Whether only a coordinator sends such requests.
template <typename Request>
constexpr bool IsCommand() {
  return std::size(CallersOf<Request>::kAll) == 1 &&
         CallersOf<Request>::kAll[0] == Role::kCoordinator;
}

// Whether a request says of its sender what the sender's certificate says.
template <typename Request>
bool SaysItsRole(const Request& /*request*/, Role /*caller*/) {
  return true;
}
inline bool SaysItsRole(const proto::RegisterRequest& request, Role caller) {
  return request.role() == (caller == Role::kServer ? proto::ROLE_SERVER : proto::ROLE_WORKER);
}

}  // namespace shoal::rpc

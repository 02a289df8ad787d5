// Which rpc a message asks for. Each rpc of the protos has a request of its own, so the request's
// type says it.
#pragma once

#include <string>

#include "google/protobuf/descriptor.h"

namespace shoal::rpc {

// The rpc that takes such requests; CHECK: there is one.
const google::protobuf::MethodDescriptor& MethodTaking(const google::protobuf::Descriptor& request);

// "/shoal.proto.Coordinator/Leave"
std::string MethodPath(const google::protobuf::MethodDescriptor& method);

}  // namespace shoal::rpc

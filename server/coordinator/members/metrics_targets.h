// Where the metrics of a cluster's members are, for Prometheus.
#pragma once

#include <string>

#include "proto/coordinator.pb.h"

namespace shoal::server {

// Returns the answer of an HTTP service discovery (JSON): of each member that serves metrics its
// target, with the labels component ("worker") and instance ("worker-3").
std::string MetricsTargets(const proto::GetStatusReply& status);

}  // namespace shoal::server

// `shoal status`: what a running coordinator says of its job and members.
#pragma once

#include <string>

#include "client/cli/verb.h"
#include "proto/rpc/token.h"

namespace shoal::cli {

struct StatusOptions {
  std::string coordinator;
  std::string token_file;  // empty: the environment's SHOAL_TOKEN
  bool json = false;
};
absl::StatusOr<ExitCode> RunStatus(const StatusOptions& options, Streams& streams);
absl::StatusOr<ExitCode> ShowStatus(const std::string& coordinator, const rpc::Token& token,
                                    bool json, Streams& streams);

}  // namespace shoal::cli

// What `shoal train` offers to type next: commands that can be pasted as they are.
#pragma once

#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/rpc/security.h"

namespace shoal::cli {

// How a run was started; without a local cluster with a token file.
struct RunArguments {
  std::string job_file;
  std::vector<std::string> overrides;
  std::string token_file;
  rpc::TlsOptions tls;
};
// Says how a run with a local cluster is, which has this checkpoint directory.
std::string StatusCommand(const std::string& directory, const rpc::TlsOptions& tls);

// Goes on with the run: the overrides say what the job file alone does not.
std::string ResumeCommand(const RunArguments& run);

// A line on how to go on with a run that ended early; `checkpoint` is empty where there is none.
// One that ended in numbers that are not finite would do so again with the same learning rate.
std::string HowToGoOn(RunArguments run, const std::string& checkpoint, const plan::Job& job,
                      bool non_finite);

// Tries the model of `folder` and measures it, in the form in which the job trained it.
std::string GenerateCommand(const std::string& folder, const plan::Job& job);
std::string EvalCommand(const std::string& folder, const plan::Job& job);

}  // namespace shoal::cli

#include "cli/run/job_access.h"

#include <cstdlib>

#include "CLI/CLI.hpp"
#include "cli/run/preflight.h"
#include "cli/run/run_access.h"
#include "core/base/net/address_flag.h"
#include "core/base/status.h"
#include "core/rpc/coordinator_service.h"
#include "core/rpc/program_flags.h"

namespace shoal::cli {

void AddJobAccess(CLI::App& command, JobAccess& access) {
  CLI::Option* job = command.add_option("job", access.job_file, "Job file of a shoal train");
  CLI::Option* run =
      command
          .add_option("--run", access.run, "Checkpoint directory of a shoal train on this machine")
          ->excludes(job);
  command
      .add_option("--coordinator", access.coordinator,
                  "HOST:PORT; of coordinators that stand by for each other all, with commas")
      ->check(HostsAndPorts())
      ->excludes(job)
      ->excludes(run);
  command.add_option("--token-file", access.token_file,
                     "File with the job's token (default: that of the shoal train on this machine, "
                     "else SHOAL_TOKEN, else the job's cluster.token_file)");
  rpc::AddTlsFlags(command, access.tls);
}

absl::StatusOr<std::string> LocalRunOf(const JobAccess& access) {
  if (!access.run.empty() || access.job_file.empty()) {
    return access.run;
  }
  SHOAL_ASSIGN_OR_RETURN(const plan::Job job, ReadJob(access.job_file, {}));
  return job.cluster.local ? job.checkpoint.directory : "";
}

namespace {

// The nearest word counts: the flag, the environment, then the job's.
absl::StatusOr<rpc::Token> LoadTokenOf(const plan::Job& job, const std::string& flag) {
  const bool unsaid = flag.empty() && std::getenv(rpc::kTokenVariable) == nullptr;
  return rpc::LoadToken(unsaid ? job.cluster.token_file : flag);
}

}  // namespace

absl::StatusOr<CoordinatorAddress> FindCoordinator(const JobAccess& access) {
  SHOAL_ASSIGN_OR_RETURN(const std::string run, LocalRunOf(access));
  CoordinatorAddress found = {.address = access.coordinator};
  std::string token_file = access.token_file;
  plan::Job job;
  if (!run.empty()) {
    SHOAL_ASSIGN_OR_RETURN(found.address, FindRun(run));
    token_file = token_file.empty() ? TokenFileIn(LogFolderOf(run)) : token_file;
  } else if (!access.job_file.empty()) {
    SHOAL_ASSIGN_OR_RETURN(job, ReadJob(access.job_file, {}));
    found.address = job.cluster.coordinator;
  }
  if (found.address.empty()) {
    return InvalidArgument("which coordinator? name a job file, --run or --coordinator");
  }
  SHOAL_ASSIGN_OR_RETURN(rpc::Token token, LoadTokenOf(job, token_file));
  SHOAL_ASSIGN_OR_RETURN(found.security,
                         rpc::Security::Create(std::move(token), access.tls, rpc::Role::kClient));
  return found;
}

absl::StatusOr<CoordinatorAddress> CoordinatorOf(const plan::Job& job,
                                                 const std::string& token_file,
                                                 const rpc::TlsOptions& tls) {
  CoordinatorAddress found = {.address = job.cluster.coordinator};
  SHOAL_ASSIGN_OR_RETURN(rpc::Token token, job.cluster.local
                                               ? absl::StatusOr<rpc::Token>(rpc::Token::Generate())
                                               : LoadTokenOf(job, token_file));
  SHOAL_ASSIGN_OR_RETURN(found.security,
                         rpc::Security::Create(std::move(token), tls, rpc::Role::kClient));
  return found;
}

std::shared_ptr<rpc::Channel> CoordinatorAddress::Connect() const {
  return rpc::Channel::Create(address, security, rpc::Role::kCoordinator);
}

absl::StatusOr<std::optional<proto::JobSummary>> FindJobOf(const std::string& checkpoint_directory,
                                                           rpc::Channel& coordinator) {
  SHOAL_ASSIGN_OR_RETURN(const proto::ListJobsReply reply,
                         coordinator.Call(&rpc::CoordinatorService::ListJobs, {}));
  for (const proto::JobSummary& job : reply.jobs()) {
    if (!job.over() && job.checkpoint_directory() == checkpoint_directory) {
      return job;
    }
  }
  return std::nullopt;
}

}  // namespace shoal::cli

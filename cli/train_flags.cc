// The command line of `shoal train`.
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/train_command.h"
#include "core/base/flag_checks.h"
#include "core/rpc/program_flags.h"

namespace shoal::cli {

void AddTrain(CLI::App& app, CommandAction& action) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = AddCommand(
      app, "train", "Run a job; Ctrl-C leaves a checkpoint",
      "shoal train job.yaml --set train.learning_rate=1e-4 --set cluster.local.workers=4");
  command->add_option("job", options->job_file, "Job file (YAML)")->required();
  command->add_option("--set", options->overrides, "KEY=VALUE over the file's (may be repeated)")
      ->allow_extra_args(false);
  command->add_option("--trace", options->trace,
                      "Write a timeline here, for ui.perfetto.dev (packed: FILE.json.gz)");
  command
      ->add_option("--steps", options->steps,
                   "Stop after this step, with a checkpoint (default: train.steps)")
      ->check(AtLeast(1));
  CLI::Option* resume =
      command
          ->add_flag("--resume{newest}", options->resume,
                     "Go on from the newest checkpoint; --resume=STEP: from that one; "
                     "--resume=auto: start if there is none, and pass over damaged ones")
          ->type_name("");
  command
      ->add_flag("--overwrite", options->overwrite,
                 "Start over, and remove an earlier run's checkpoints once a step is committed")
      ->excludes(resume);
  command
      ->add_flag("--accept-changes", options->accept_changes,
                 "Resume although data.*, train.minibatch_samples or plan.pack_groups are not the "
                 "checkpoint's")
      ->needs(resume);
  command->add_flag("--json", options->json, "JSON lines instead of a progress bar");
  command
      ->add_flag("--detach", options->detach,
                 "Submit the job to a coordinator that stays, print its id, and return")
      ->excludes("--overwrite")
      ->excludes("--trace");
  command->add_flag("--wait-for-servers", options->wait_for_servers,
                    "Where a coordinator stays and too few servers are there: wait for them");
  command->add_flag("--keep-logs", options->keep_logs,
                    "Keep the processes' logs when all went well");
  command
      ->add_option("--metrics-port", options->metrics_port,
                   "Serve Prometheus metrics of local processes to this machine: the "
                   "coordinator's port, the others have the next ones; 0: free ones")
      ->check(CLI::Range(0, 65535).description("0 TO 65535"));
  // For tests: delays, reordering and lost doorbells in the workers' transports.
  command->add_option("--fault-seed", options->fault_seed)->group("");
  command->add_option(
      "--token-file", options->token_file,
      "With cluster.coordinator: file with its token (default: SHOAL_TOKEN, else the "
      "job's cluster.token_file)");
  rpc::AddTlsFlags(*command, options->tls);
  command->callback([options, &action] {
    action = [options](Streams& streams) { return RunTrain(*options, streams); };
  });
}

}  // namespace shoal::cli

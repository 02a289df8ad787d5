#include "cli/train_command.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "absl/strings/str_join.h"
#include "cli/checkpoint_command.h"
#include "cli/data/training_data.h"
#include "cli/launcher/launcher.h"
#include "cli/launcher/supervisor.h"
#include "cli/plan/pipeline_report.h"
#include "cli/plan/simulation.h"
#include "cli/run/await_cluster.h"
#include "cli/run/earlier_run.h"
#include "cli/run/follow_job.h"
#include "cli/run/job_access.h"
#include "cli/run/log_command.h"
#include "cli/run/machine.h"
#include "cli/run/next_commands.h"
#include "cli/run/preflight.h"
#include "cli/run/run_access.h"
#include "cli/run/run_lock.h"
#include "cli/run/stop_signals.h"
#include "cli/run/train_report.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/plan/pipeline/chosen_pipeline.h"
#include "core/rpc/channel.h"
#include "core/rpc/coordinator_service.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/checkpoint.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLeaveLimit =
    absl::Seconds(5);  // for the processes to end once the job is over
constexpr absl::Duration kSubmitDeadline =
    absl::Seconds(60);  // the coordinator reads data set and checkpoints first
constexpr absl::Duration kRestartLimit = absl::Seconds(10);  // same, when it is started again

class Training {
 public:
  Training(const TrainOptions& options, Streams& streams)
      : options_(options), streams_(streams), report_(streams, options.json) {}

  absl::StatusOr<ExitCode> Run() {
    if (const absl::Status prepared = Prepare(); !prepared.ok()) {
      std::error_code ignored;
      if (lock_.has_value()) {
        fs::remove(DataFolder(), ignored);  // where it is empty
        lock_->RemoveIfUnused();
      }
      return prepared;
    }
    const StopSignals signals;  // from here on processes run that must be taken down
    if (job_.cluster.local) {
      SHOAL_RETURN_IF_ERROR(StartCluster());
    }
    SHOAL_RETURN_IF_ERROR(Submit(signals));
    if (options_.detach) {
      return Detach();
    }
    const RunEnd end = Follow(signals);
    report_.Clear();
    const ExitCode code = End(end);
    SHOAL_RETURN_IF_ERROR(FinishTrace());
    if (code == ExitCode::kDone && Exports(end)) {
      SHOAL_RETURN_IF_ERROR(
          server::ReplaceExport(end.best_checkpoint.empty() ? end.checkpoint : end.best_checkpoint,
                                ExportFolder(), job_));
    }
    report_.PrintEnd(end);
    Summarise(end, code);
    return code;
  }

 private:
  absl::Status Prepare() {
    SHOAL_RETURN_IF_ERROR(Check());
    SHOAL_RETURN_IF_ERROR(OpenTrace());
    if (!job_.cluster.local) {  // tokenising may take long
      SHOAL_RETURN_IF_ERROR(AwaitServers(0, [] { return absl::OkStatus(); }));
    }
    SHOAL_RETURN_IF_ERROR(PrepareData());
    return PlanPipeline();
  }

  std::string Directory() const { return job_.checkpoint.directory; }
  std::string About() const {
    return job_.emulate.enabled() ? "emulated devices of shape " + job_.emulate.shape
                                  : options_.job_file;
  }
  std::string LogFolder() const { return LogFolderOf(Directory()); }
  std::string DataFolder() const { return Directory() + "/data"; }
  std::string ExportFolder() const { return Directory() + "/huggingface"; }

  absl::Status At(const char* key, const absl::Status& status) const {
    return AtKey(status, key, options_.job_file, options_.overrides);
  }

  absl::Status Check() {
    SHOAL_ASSIGN_OR_RETURN(job_, ReadJob(options_.job_file, options_.overrides));
    if (job_.train.epochs == 0) {
      SHOAL_RETURN_IF_ERROR(CheckLastStep());
    }
    SHOAL_RETURN_IF_ERROR(CheckCluster(job_, options_.job_file, options_.metrics_port));
    if (options_.detach) {
      SHOAL_RETURN_IF_ERROR(CheckDetach(job_, options_.job_file, options_.overrides));
    }
    SHOAL_ASSIGN_OR_RETURN(spec_, CheckModel(job_, options_.job_file, options_.overrides));
    SHOAL_RETURN_IF_ERROR(At("train.groups", CheckGroups(job_, spec_)));
    SHOAL_RETURN_IF_ERROR(
        At(KeyOfTrainingData(job_), CheckData(job_.data.paths(), job_.train.objective)));
    if (!job_.data.validation.path.empty()) {
      SHOAL_RETURN_IF_ERROR(
          At("data.validation.path", CheckData({job_.data.validation.path}, job_.train.objective)));
    }
    SHOAL_ASSIGN_OR_RETURN(coordinator_, CoordinatorOf(job_, options_.token_file, options_.tls));
    SHOAL_ASSIGN_OR_RETURN(gpus_, CheckGpus(job_));
    auto lock = RunLock::Take(Directory());
    SHOAL_RETURN_IF_ERROR(At("checkpoint.directory", lock.status()));
    lock_ = *std::move(lock);
    RemoveUnfinishedFiles(DataFolder());
    SHOAL_RETURN_IF_ERROR(EarlierRun::Recover(Directory()));
    if (!options_.resume.empty()) {
      SHOAL_ASSIGN_OR_RETURN(newest_, server::NewestCheckpoint(Directory()));
      SHOAL_ASSIGN_OR_RETURN(resumed_, ChooseCheckpoint(Directory(), options_.resume));
    } else if (!options_.overwrite) {
      SHOAL_RETURN_IF_ERROR(CheckEmpty(Directory()));
    }
    SHOAL_RETURN_IF_ERROR(SettleAsBefore(resumed_, job_));
    std::string recompute;
    if (job_.cluster.local) {
      machine_ = ExamineMachine();
      SHOAL_RETURN_IF_ERROR(machine_.memory.status());
      SHOAL_ASSIGN_OR_RETURN(recompute, SettleRecompute(job_, spec_, machine_.memory->available));
    }
    SHOAL_RETURN_IF_ERROR(CompareWithCheckpoint());
    SHOAL_ASSIGN_OR_RETURN(const std::string room, CheckRoom(job_, spec_, options_.overwrite));
    Warn(room);
    for (const std::string& notice : {recompute, DescribeAdapters(spec_)}) {
      notice.empty() ? void() : report_.OnNotice(notice);
    }
    return CreateDirectories(Directory());
  }

  absl::Status CheckLastStep() const {
    return options_.steps <= job_.train.steps
               ? absl::OkStatus()
               : InvalidArgument(
                     "--steps {} is beyond the {} steps of {}: raise train.steps or "
                     "train.epochs (the schedule ends there)",
                     options_.steps, job_.train.steps, options_.job_file);
  }

  absl::Status CompareWithCheckpoint() {
    if (resumed_.has_value()) {
      SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> differences,
                             CheckResumedJob(*resumed_, job_, options_.accept_changes));
      for (const std::string& difference : differences) {
        report_.OnNotice(difference);
      }
    }
    return absl::OkStatus();
  }

  // What is not to be gone on from is in the way of checkpoints to come.
  absl::Status SetAside() {
    if (resumed_.has_value()) {
      SHOAL_RETURN_IF_ERROR(CheckNotOvertaken(Directory(), newest_));
      if (newest_.has_value() && newest_->step > resumed_->step) {
        if (options_.detach) {  // Nobody would remove them, or bring them back.
          return InvalidArgument("--detach cannot go back to step {}", resumed_->step);
        }
        report_.OnNotice(fmt::format(
            "going on from step {}: checkpoints after it, up to step {}, go with the first step",
            resumed_->step, newest_->step));
        SHOAL_ASSIGN_OR_RETURN(EarlierRun aside, EarlierRun::SetAside(Directory(), resumed_->step));
        earlier_.emplace(std::move(aside));
      }
    } else if (options_.overwrite) {
      SHOAL_ASSIGN_OR_RETURN(EarlierRun aside, EarlierRun::SetAside(Directory(), -1));
      earlier_.emplace(std::move(aside));
    }
    return absl::OkStatus();
  }

  void Warn(const std::string& of) {
    if (!of.empty()) {
      report_.OnNotice("warning: " + of);
    }
  }
  void Warn(const absl::Status& status) { Warn(std::string(Message(status))); }

  void OnFirstStep() {
    if (earlier_.has_value()) {
      Warn(earlier_->Remove());
    }
    // It reads the record, which exists once a step is committed.
    if (!job_.log.command.empty()) {
      auto started = LogCommand::Start(job_.log.command, Directory(), LogFolder());
      Warn(Annotate(started.status(), "log.command"));
      log_command_ = started.ok() ? *std::move(started) : nullptr;
    }
  }

  absl::Status OpenTrace() {
    if (!options_.trace.empty()) {
      auto trace = TraceRecorder::Create(options_.trace, About());
      SHOAL_RETURN_IF_ERROR(Annotate(trace.status(), "--trace"));
      trace_ = *std::move(trace);
      report_.RecordTraces(trace_.get());
    }
    return absl::OkStatus();
  }

  absl::Status PrepareData() {
    auto prepared = PrepareTrainingData(
        job_, DataFolder(),
        {resumed_.has_value(), options_.accept_changes,
         std::bind_front(&TrainReport::OnProgress, &report_, "tokenising, bytes"),
         std::bind_front(&Training::At, this)});
    report_.Clear();
    SHOAL_RETURN_IF_ERROR(prepared.status());
    data_ = *std::move(prepared);
    job_.data.date = data_.date.empty() ? job_.data.date : data_.date;
    if (!options_.json) {
      streams_.out << absl::StrJoin(job_.data.paths(), " + ") << ": "
                   << worker::Describe(data_.train.summary) << std::endl;
      if (data_.validation.has_value()) {
        streams_.out << "validation: " << worker::Describe(data_.validation->summary) << std::endl;
      }
    }
    std::ranges::for_each(DataWarnings(job_, spec_, data_.train.summary),
                          [this](const std::string& warning) { Warn(warning); });
    SHOAL_RETURN_IF_ERROR(SettleEpochs());
    plan::SettleReference(job_, data_.train.summary.samples);
    return absl::OkStatus();
  }

  absl::Status SettleEpochs() {
    if (job_.train.epochs == 0) {
      return absl::OkStatus();
    }
    const double epochs = job_.train.epochs;
    SHOAL_RETURN_IF_ERROR(
        At("train.epochs", plan::SettleEpochs(job_.train, data_.train.summary.samples)));
    report_.OnNotice(fmt::format("train.epochs {}: {} steps", epochs, job_.train.steps));
    return CheckLastStep();
  }

  // Rates that the job leaves open are measured before processes take the machine, and go with the
  // job, so that all plan by the same.
  absl::Status PlanPipeline() {
    if (!job_.cluster.pipeline.enabled()) {
      return absl::OkStatus();
    }
    SHOAL_ASSIGN_OR_RETURN(const sim::Minibatches minibatches,
                           TokenFileMinibatches(job_, data_.train.path));
    const auto planned = ReportPipeline(job_, spec_, minibatches);
    SHOAL_RETURN_IF_ERROR(At(PipelineKey(job_).c_str(), planned.status()));
    if (job_.cluster.local) {
      SHOAL_RETURN_IF_ERROR(
          CheckMemory(spec_, job_, machine_.memory->available, planned->stages).status());
    }
    if (job_.cluster.workers > 0) {
      pipeline_ = plan::ToMessage({planned->plan.chosen().choice, planned->request.microbatches});
    }
    report_.OnNotice(Describe(*planned));
    Warn(WarningOf(*planned));
    return absl::OkStatus();
  }

  absl::Status StartCluster() {
    LocalClusterOptions cluster = ClusterOf(job_, UsableCores(machine_));
    cluster.program_folder = options_.program_folder;
    cluster.work_folder = LogFolder();
    cluster.token = coordinator_.security.token();
    cluster.tls = options_.tls;
    cluster.gpus = gpus_;
    cluster.fault_seed = options_.fault_seed;
    cluster.metrics_port = options_.metrics_port;
    if (cluster.program_folder.empty()) {
      SHOAL_ASSIGN_OR_RETURN(cluster.program_folder, ProgramFolder());
    }
    SHOAL_ASSIGN_OR_RETURN(cluster_, LocalCluster::Start(cluster));
    supervisor_.emplace(*cluster_, [this](const std::string& text) { report_.OnNotice(text); });
    coordinator_.address = cluster_->coordinator_address();
    report_.OnNotice("state of this run: " + StatusCommand(Directory(), options_.tls));
    if (!cluster_->metrics().empty()) {
      report_.OnNotice("metrics: " + cluster_->metrics());
    }
    return absl::OkStatus();
  }

  absl::Status CheckProcesses(const StopSignals& signals) {
    const bool start_again = job_.queue.max_restarts > 0 && signals.count() == 0;
    return supervisor_.has_value() ? supervisor_->Check(start_again) : absl::OkStatus();
  }

  absl::Status AwaitServers(int64_t servers, const std::function<absl::Status()>& check) {
    return AwaitCluster(
        *coordinator_.Connect(), servers, absl::Seconds(job_.cluster.start_timeout_seconds),
        [this](const std::string& text) { report_.OnNotice(text); }, check);
  }

  absl::Status Submit(const StopSignals& signals) {
    SHOAL_RETURN_IF_ERROR(AwaitServers(cluster_ == nullptr ? 0 : job_.cluster.servers, [&] {
      return signals.count() > 0 ? absl::CancelledError(signals.reason()) : CheckProcesses(signals);
    }));
    const auto coordinator = coordinator_.Connect();
    if (options_.resume == kResumeAuto && cluster_ == nullptr) {
      // Whoever followed the job is gone, or the coordinator was, and the job goes on.
      SHOAL_ASSIGN_OR_RETURN(const auto job, FindJobOf(Directory(), *coordinator));
      if (job.has_value()) {
        job_id_ = job->job_id();
        report_.OnNotice(fmt::format("{} ({}) has {}: following it, whatever this job file says",
                                     job_id_, job->state(), Directory()));
        return absl::OkStatus();
      }
    }
    SHOAL_RETURN_IF_ERROR(SetAside());
    SHOAL_RETURN_IF_ERROR(worker::WriteRendering(DataFolder(), data_.rendering));
    proto::SubmitJobRequest request;
    *request.mutable_job() = plan::ToMessage(job_);
    if (pipeline_.has_value()) {
      *request.mutable_pipeline() = *pipeline_;
    }
    std::error_code error;
    request.set_token_file(fs::absolute(data_.train.path, error).string());
    if (data_.validation.has_value()) {
      request.set_validation_file(fs::absolute(data_.validation->path, error).string());
    }
    request.set_stop_after_step(options_.steps);
    request.set_resume(resumed_.has_value());
    request.set_trace(trace_ != nullptr);
    request.set_wait_for_servers(options_.wait_for_servers);
    request.set_detached(options_.detach);
    const auto reply =
        coordinator->Call(&rpc::CoordinatorService::SubmitJob, request,
                          {.deadline = kSubmitDeadline, .wait_for_connection = true});
    if (!reply.ok() && options_.resume == kResumeAuto) {
      SHOAL_RETURN_IF_ERROR(CheckNotOvertaken(Directory(), newest_));
    }
    SHOAL_RETURN_IF_ERROR(reply.status());
    job_id_ = reply->job_id();
    if (const int64_t ahead = reply->jobs_ahead(); ahead > 0) {
      report_.OnNotice(
          fmt::format("{} waits for {} {} ahead", job_id_, ahead, ahead == 1 ? "job" : "jobs"));
    }
    return absl::OkStatus();
  }

  ExitCode Detach() {
    if (options_.json) {
      PrintJson(streams_.out, {{"event", "submitted"}, {"job_id", job_id_}});
    } else {
      streams_.out << job_id_ << std::endl;
    }
    return ExitCode::kDone;
  }

  RunEnd Follow(const StopSignals& signals) {
    FollowOptions follow{.job_id = job_id_,
                         .stop_requests = [&signals] { return signals.count(); },
                         .stop_reason = [&signals] { return signals.reason(); },
                         .on_first_step = [this] { OnFirstStep(); },
                         .patience = absl::Seconds(job_.cluster.lease_seconds)};
    if (cluster_ != nullptr) {
      follow.check_processes = [this, &signals] { return CheckProcesses(signals); };
      follow.patience = std::max(follow.patience, kRestartLimit);
      follow.as_told = false;  // the supervisor starts it again, or gives up
      follow.on_wanted = [this](int64_t servers) { return cluster_->StartServers(servers); };
    }
    return FollowJob(coordinator_.Connect(), coordinator_.Connect(), follow, report_);
  }

  // Takes the processes down, and says what the end of the run means for the exit code.
  ExitCode End(const RunEnd& end) {
    if (log_command_ != nullptr) {
      Warn(log_command_->Finish());
    }
    const bool reached = end.kind == RunEnd::Kind::kReached;
    if (cluster_ != nullptr) {
      if (reached || (end.kind == RunEnd::Kind::kInterrupted && end.message.empty())) {
        cluster_->Finish(kLeaveLimit);
      } else {
        cluster_->Kill();
      }
      if (reached && !options_.keep_logs) {
        std::error_code ignored;
        fs::remove_all(LogFolder(), ignored);
      }
    }
    RunEnd known = end;
    known.checkpoint = NewestCheckpoint(end);
    return ExitCodeOf(known);
  }

  absl::Status FinishTrace() {
    if (trace_ != nullptr) {
      SHOAL_ASSIGN_OR_RETURN(const std::string text, trace_->Finish());
      streams_.err << text << std::endl;
    }
    return absl::OkStatus();
  }

  std::string NewestCheckpoint(const RunEnd& end) const {
    if (!end.checkpoint.empty()) {
      return end.checkpoint;
    }
    const auto newest = server::NewestCheckpoint(Directory());
    return newest.ok() && newest->has_value() ? (*newest)->path : "";
  }

  // Emulated devices compute nothing that anybody could want.
  bool Exports(const RunEnd& end) const {
    return job_.checkpoint.export_huggingface && !job_.emulate.enabled() && !end.checkpoint.empty();
  }

  void Summarise(const RunEnd& end, ExitCode code) {
    std::ostream& out = options_.json ? streams_.err : streams_.out;
    const std::string checkpoint = NewestCheckpoint(end);
    if (end.kind == RunEnd::Kind::kFailed || end.kind == RunEnd::Kind::kNonFinite) {
      streams_.err << Paint(streams_.err_terminal, Colour::kRed, "shoal: error:") << " "
                   << end.message << "\n";
      if (cluster_ != nullptr) {
        streams_.err << "logs: " << LogFolder() << "\n";
      }
    } else if (end.kind == RunEnd::Kind::kInterrupted) {
      streams_.err << fmt::format("stopped after step {}{}\n", end.step,
                                  end.message.empty() ? "" : ": " + end.message);
    } else if (!options_.json) {
      out << Reached(end);
    }
    if (code != ExitCode::kDone) {
      streams_.err << HowToGoOn({.job_file = options_.job_file,
                                 .overrides = options_.overrides,
                                 .token_file = options_.token_file,
                                 .tls = options_.tls},
                                checkpoint, job_, end.kind == RunEnd::Kind::kNonFinite)
                   << std::flush;
    }
  }

  std::string Reached(const RunEnd& end) const {
    std::string text = fmt::format("step {} reached, loss {:.4f}", end.step, end.loss);
    if (report_.first_loss().has_value()) {
      text += fmt::format(" (from {:.4f}), {} tokens in {}", *report_.first_loss(),
                          WithThousands(report_.tokens()), FormatSeconds(report_.seconds()));
    }
    text += DescribeValidation(end);
    const worker::PrepareSummary& data = data_.train.summary;
    text += fmt::format(
        "\ndata: {} samples, {} skipped as too long, {} without a target, {} truncated\n",
        WithThousands(data.samples), data.skipped_oversize, data.skipped_no_target, data.truncated);
    text += fmt::format("checkpoint: {}\n", end.checkpoint);
    if (job_.emulate.enabled()) {
      text += "no model is exported: emulated devices compute nothing\n";
    } else if (Exports(end)) {
      text += fmt::format("model: {}{}\nnext: {}\n      {}\n", ExportFolder(), WhichStep(end),
                          GenerateCommand(ExportFolder(), job_), EvalCommand(ExportFolder(), job_));
    }
    return text;
  }

  const TrainOptions& options_;
  Streams& streams_;
  TrainReport report_;
  std::unique_ptr<TraceRecorder> trace_;
  std::optional<RunLock> lock_;
  std::optional<EarlierRun> earlier_;             // brought back under the lock
  std::optional<server::CheckpointInfo> newest_;  // that was there when resumed_ was chosen
  std::optional<server::CheckpointInfo> resumed_;
  plan::Job job_;
  plan::ModelSpec spec_;
  Machine machine_;
  std::vector<int> gpus_;  // of the local workers
  TrainingData data_;
  std::optional<proto::PipelinePlan> pipeline_;  // to submit
  std::unique_ptr<LocalCluster> cluster_;
  std::optional<Supervisor> supervisor_;  // of cluster_
  std::unique_ptr<LogCommand> log_command_;
  CoordinatorAddress coordinator_;
  std::string job_id_;
};

}  // namespace

absl::StatusOr<ExitCode> RunTrain(const TrainOptions& options, Streams& streams) {
  return Training(options, streams).Run();
}

}  // namespace shoal::cli

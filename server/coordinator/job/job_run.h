// One job from its members' arrival to its end: configure the servers, then step after step hand
// out work, gather reports, prepare, commit; checkpoints; and what goes wrong on the way.
//
// A state machine without threads, locks or waiting, driven by calls (from workers, the command
// line, the clock) and by answers of servers and of background work. Its owner serialises them all
// and passes executors: `post` runs a function serialised with all calls (under the owner's lock);
// `plan` and `disk` each run functions in order on a thread that may block. Answers come through
// `post`, so that the thread that brings the last one does what follows at once.
//
// A step's attempt passes through kBeginning (servers clear their accumulators), kRunning (workers
// have work), kPreparing and kCommitting. Up to the durable commit record an attempt can be dropped
// and the step begun again as the next attempt; what still arrives for a dropped one is recognised
// by its number and ignored. After a bounded number of attempts the job fails, and with a lost
// server that no other stands in for (loss_decision.h). The plan of the next step is made while
// workers compute, or, where what they measure shapes it, while the servers commit.
//
// Workers come and go. What a lost one had in hand goes to others within the attempt, in a further
// round where they have reported already. One that comes takes part from the step after it has
// asked for work. With too few the job waits. With several stages all this is of whole groups.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/step/draw_queue.h"
#include "core/plan/step/pack_ledger.h"
#include "core/plan/step/step_plan.h"
#include "proto/coordinator.pb.h"
#include "proto/server.pb.h"
#include "server/coordinator/job/checkpoint_files.h"
#include "server/coordinator/job/job_environment.h"
#include "server/coordinator/job/job_run_parts.h"
#include "server/coordinator/job/partition_move.h"
#include "server/coordinator/job/server_client.h"
#include "server/coordinator/job/takeover.h"
#include "server/coordinator/members/joining_groups.h"
#include "server/coordinator/members/membership.h"
#include "server/coordinator/record/event_log.h"
#include "server/coordinator/record/record_queue.h"
#include "server/coordinator/step/step_measurements.h"
#include "server/coordinator/step/step_result.h"
#include "server/coordinator/step/worker_groups.h"

namespace shoal::server {

class JobRun {
 public:
  // `resume` is the checkpoint to go on from. `events` are those of the job's earlier runs, or
  // none.
  JobRun(LoadedJob job, std::optional<CompleteCheckpoint> resume, JobEnvironment environment,
         std::shared_ptr<EventLog> events);
  ~JobRun();

  void Take(int64_t servers, int64_t workers);  // says how many members it takes
  // Starts with these members, where there are enough of them, else says for whom it waits.
  void Offer(std::vector<Member> servers, std::vector<Member> workers);
  // Goes on with it where it is, instead.
  void TakeOver(const EarlierRun& earlier);
  // To these servers, which an earlier life may have had load it, it says at a border to let go.
  void Disown(std::vector<Member> servers);
  // Was over in an earlier life, by this; these servers may hold it still.
  void BeOver(const std::string& outcome, std::vector<Member> servers);
  void Queue(int64_t ahead);  // says that it waits for so many jobs
  // A worker's lease is over: servers take nothing from it any more, though it may still run.
  void Fence(const Member& worker);
  bool HasRoom() const;  // whether it trains and takes more workers
  // Takes in those of these workers, which have no job, that it has room for.
  void TakeIn(const std::vector<Member>& workers);
  // A member's lease is over, or it left before the job was over.
  void OnLost(const Member& member, const std::string& why);
  // A member asks to leave. A server stays until others have what it holds, or a checkpoint.
  void OnLeaving(const Member& member, const std::string& why);
  // A server is to go for good, if others can have what it holds.
  absl::Status CheckDrain(const Member& server) const;
  proto::ScaleReply Drain(const Member& server);
  std::vector<Member> TakeKept() { return std::exchange(kept_, {}); }  // who stays after all
  // Ends it after the last commit, with a checkpoint; `for_good`, or until its owner's next life.
  void Stop(const std::string& reason, bool for_good = true);
  // Ends the job with a message, at once.
  void Fail(const std::string& message, bool non_finite = false);
  // Of one that is over, whether another is to be made of it; once it is cleared, of what.
  bool restarts() const { return restarts_; }
  LoadedJob TakeJob() { return std::move(job_); }
  const std::optional<CompleteCheckpoint>& newest_checkpoint() const { return newest_checkpoint_; }
  // Members that a call could not reach, each once: lost before their lease is over.
  std::vector<Member> TakeUnreachable() { return std::exchange(unreachable_, {}); }
  // How many servers it is to have, and where that stands (job_run_wish.cc).
  absl::StatusOr<proto::ScaleReply> Scale(const proto::ScaleRequest& request);
  // Whether it waits for more servers; those that have no job.
  bool WantsServers() const;
  void OfferServers(std::vector<Member> spares);
  // Deadlines: call at NextTick() or later.
  void Tick();
  absl::Time NextTick() const;

  // What a worker gets; nullopt: nothing yet, wait for changes() to move. Calls may be repeated.
  std::optional<proto::JoinJobReply> Join(const proto::JoinJobRequest& request);
  std::optional<proto::NextStepReply> Next(const proto::NextStepRequest& request);
  // Where they are drawn. Aborted for another attempt, InvalidArgument for a number out of turn.
  absl::StatusOr<proto::DrawMicrobatchReply> Draw(const proto::DrawMicrobatchRequest& request);
  // Of a worker, "stage 1 of group 0"; empty without a pipeline.
  std::string PlaceOf(uint64_t incarnation) const;
  bool TakesPart(uint64_t incarnation) const;
  bool IsJoining(uint64_t incarnation) const;  // a server that is about to become part of it
  const std::vector<Member>& workers() const { return workers_; }
  // Where a worker's last committed step went; null: there is none.
  const proto::LastStep* LastStepOf(uint64_t incarnation) const;

  bool waiting() const { return phase_ == Phase::kWaiting; }
  bool over() const { return closed() && !question_.has_value(); }
  // Over, and servers have let go of it.
  bool released() const { return over() && holders_.empty(); }
  // Released, and all that was read for it is gone: nothing refers to it any more.
  bool cleared() const { return cleared_; }
  const std::string& state() const { return state_; }
  absl::Time state_since() const { return state_since_; }
  int64_t version() const { return version_; }
  double mfu() const { return mfu_; }  // of the last committed step; 0: unknown
  const LoadedJob& job() const { return job_; }
  const std::shared_ptr<EventLog>& events() const { return events_; }
  // Calls to its servers end with the last reference; none is made from now on.
  std::vector<std::shared_ptr<ServerClient>> ReleaseServers();
  // Moves whenever Join or Next may answer differently than before.
  int64_t changes() const { return changes_; }

 private:
  using Phase = JobPhase;
  // Nothing more is done for it: it is over, once followers may know.
  bool closed() const { return phase_ == Phase::kOver; }
  // job_run.cc
  void WaitFor(int64_t servers, int64_t workers, const std::string& of_workers);
  void SetServers(std::vector<Member> servers);
  void SetMembers(std::vector<Member> servers, std::vector<Member> workers);
  // These are the job's from now on; indices are 0, 1, ... in each list.
  void Start(std::vector<Member> servers, std::vector<Member> workers);
  std::optional<size_t> WorkerOf(uint64_t incarnation) const;  // index in workers_
  absl::Status CheckStages() const;
  void NameWorkers();
  void FillGroup(int group, uint64_t incarnation, std::span<const Member> stages,
                 proto::JoinJobReply& reply) const;
  void FillPeers(proto::JoinJobReply& reply) const;
  void OnFolderTaken(const absl::Status& status);
  void Configure();
  void OnConfigured(const std::vector<proto::ConfigureReply>& replies);
  std::string Remedy() const;
  void Lose(const Member& member, const std::string& why, bool asked);
  bool IsLoss(const absl::Status& status) const;  // what a server answers
  // True, and the owner has heard it, where a later life of it is there.
  bool EndsBySuccessor(const absl::Status& status) const;
  void OnServerError(int server, const absl::Status& status);
  void Log(const absl::Status& status) const;
  void Change() { ++changes_; }

  // job_run_takeover.cc
  const proto::SavedRun& DescribeRun();
  void AskWhereItIs(size_t server, rpc::Done<proto::TakeOverReply> done);
  void AskForTakeover(size_t server);
  void AskAgain(absl::Time now);
  absl::Time NextAsk() const;
  void OnAnswer(size_t server, const absl::StatusOr<proto::TakeOverReply>& reply);
  void OnRecordRead(const absl::StatusOr<int64_t>& last_event);
  void DecideOnAnswers();
  bool LoseWhoHoldsNothing(const std::vector<ServerAnswer>& answers);
  void GoOn(const TakeoverDecision& decision);
  int64_t LastTold() const;  // step
  bool OwesCheckpoint() const;

  // job_run_end.cc
  // Ends the job once the commit or checkpoint under way is over.
  void EndAfterCommit();
  // While no call to servers is under way: ends the job with a message, after a checkpoint.
  void SaveAndFail(const std::string& message, bool non_finite = false);
  // Goes on with `then` unless a later life of the owner has taken over.
  void AskForSuccessor(std::function<void()> then);
  void OnSuccessorAnswer(const absl::Status& status);
  void StopAsking(absl::Time now);
  // Ends it by a loss: for good, or until members are there again.
  void FailByLoss(const std::string& message, bool asked = false);
  void TellFailure(const std::string& message, bool non_finite);
  void TellEnd();
  void Finish(bool interrupted);
  void Complete();
  void OnBestFound(const std::string& path);
  bool MustExport() const;
  const std::string& ExportedCheckpoint() const;
  void Export();
  void OnExported(const absl::StatusOr<std::string>& folder);
  void End();
  void ReleaseMembers();
  void Release(size_t server);
  void OnReleased(size_t server, const absl::Status& status);
  void OnHolderLost(const Member& member);
  void ReleaseAgain(absl::Time now);
  void ReleaseAt(ServerClient& control, const std::vector<int>& members);
  absl::Time NextRelease() const;
  void Clear();

  // job_run_validation.cc
  bool AtEnd() const;  // no more steps
  bool IsValidated(int64_t version) const;
  bool LacksReferences() const;  // of pairs: they come before all else
  bool ValidationDue(int64_t version) const;
  void RequestFirstPlan();
  void RequestNextPlan();
  void TakeReferences();
  void EndValidation();
  void TellValidation();
  void TakeOverValidation(const proto::SavedRun& saved);

  // job_run_wish.cc
  absl::Status CheckTrains() const;
  absl::Status CheckWish(int64_t servers) const;
  absl::Status CheckFits(const std::set<uint64_t>& leaving, int64_t servers) const;
  void Wish(int64_t servers, int64_t rate);
  void SetWanted(int64_t servers);
  void SetBytesLeft(int64_t bytes);
  proto::ScaleReply DescribeScaling() const;
  proto::ScaleReply DescribeWish(int64_t servers) const;

  // job_run_move.cc
  int64_t NextGeneration();
  bool CanMove() const;
  bool IsToMove() const;
  bool BeginMove();
  absl::StatusOr<bool> IsReadyToMove();
  std::vector<int> PlacesToBe() const;
  WaveKey NextWave() const;
  void PlanWaveAhead();
  PlannedWave& WaveAtHand();
  void BeginWave();
  template <typename Request, typename Reply>
  void CallForMove(ServerMethod<Request, Reply> method, std::map<int, Request>& requests,
                   const std::type_identity_t<std::function<void(std::map<int, Reply>)>>& then);
  void ReserveForMove();
  void FetchForMove();
  void EndWave(int64_t bytes);
  void TellWave(int64_t bytes, size_t servers_before);
  void Retire(std::shared_ptr<ServerClient> control);
  void OnMoveFailed(size_t member, const absl::Status& status);
  void GiveUpMove(const std::string& why);
  const MapForms& Forms();
  void OnMapTold();

  // job_run_replicas.cc
  int64_t replicas() const { return job_.job.service.replicas; }
  bool IsReplaced(const Member& server) const;  // where it is lost
  void LoseServer(const Member& member);
  void GoOnWithoutServer(size_t server);
  void DropWave();
  void Recover();
  void MoveToThoseLeft();
  void RecoverAgain(const absl::Status& status);
  void EndRecovery();
  void TellReplicas();
  plan::ShardMap HeldByThoseLeft() const;
  void MakeBackups(absl::Duration in);
  bool BackUpMeanwhile();
  bool GiveUpMeanwhile(const std::string& why);
  bool LacksBackups() const;
  plan::ShardMap TargetOf(std::span<const int> places) const;
  void FillServers(proto::JoinJobReply& reply) const;
  void FillMap(const Member& worker, proto::JoinJobReply& reply) const;
  bool Join(uint64_t incarnation, int64_t known, proto::JoinJobReply& reply);
  bool FillChange(int64_t known, const Member& worker, proto::JoinJobReply& reply);
  std::function<proto::BeginAttemptRequest(int)> AttemptAt(proto::BeginAttemptRequest all);
  void Replicate(const std::function<void()>& then);
  std::function<void(int, const absl::Status&)> OrWithoutLost(std::function<void()> then);

  // job_run_joiners.cc
  void LoadAhead();
  absl::StatusOr<bool> LoadJoiners(const std::vector<Member>& needed);
  void AskToLoad(const std::vector<Member>& servers);
  void OnJoinerLoaded(const Member& joiner, const absl::StatusOr<proto::ConfigureReply>& reply);
  void OnJoinerAnswered(uint64_t incarnation);
  void ReleaseJoiners(const std::vector<Member>& kept = {});
  void LoseJoiner(const Member& member);

  // job_run_drain.cc
  std::set<uint64_t> Leaving() const;
  int64_t ServersToBe(size_t leaving, int64_t wish) const;
  int64_t ServersToBe() const { return ServersToBe(departures_.size(), job_.servers); }
  int64_t OneFewer() const;
  absl::Status CheckDepartures(const std::set<uint64_t>& leaving, int64_t wish) const;
  void Depart(const Member& server, const std::string& why);
  void GiveUpDepartures(const std::string& why);
  bool IsElastic() const { return job_.job.cluster.elastic; }
  void Settle();
  bool IsSettled() const;

  // job_run_workers.cc
  // Whether it computes on what the others do, or the job takes it all the same, which is told.
  bool Suits(const Member& worker);
  void AdmitWorkers();
  void AdmitAgain();
  int64_t present() const;
  bool IsShort() const { return present() + joining_.ready() < least_workers(); }
  int64_t least_workers() const;
  // Between steps: without those that are lost, with those that have joined. False: too few.
  bool Regroup();
  void WaitForWorkers();
  std::string Missing() const;
  void FormGroups();
  void TakeFrom(size_t worker, const proto::NextStepRequest& request);
  std::optional<proto::NextStepReply> NextOfJoiner(const proto::NextStepRequest& request);
  void Renumber(const std::vector<int>& before);
  void LoseWorker(const Member& member);
  void GoOnWithout(size_t worker);
  void LetGo(size_t worker);  // if it is told to leave, as soon as nobody needs it
  bool GroupWorks(size_t group) const;
  bool IsWhole(size_t group) const { return !absent_[groups_.WorkerAt(group, 0)]; }
  bool MustDropWithout(size_t group) const;
  void HandOver(size_t group);
  void StartRound(size_t group);  // of one that has reported
  void EndOfRounds();

  // job_run_draw.cc
  void FillMicrobatch(const plan::Microbatch& microbatch, proto::MicrobatchWork& message) const;
  bool DrawsMicrobatches() const;
  void StartDraws();

  // job_run_step.cc
  void MeasurePaces();
  // Of the step, or of the validation before it.
  void RequestPlan(int64_t step, bool of_validation);
  std::string NameOfWork(int64_t step, bool validates) const;  // "step 3"
  void OnPlanned(int64_t request, absl::StatusOr<plan::StepPlan> plan);
  void OpenStep();
  void NumberStep();
  void OpenAttempt();
  void BeginAtServers(const std::function<void()>& then);
  void OnBegun();
  void DropAttempt(const absl::Status& reason);
  void DropForMembers(const std::string& reason);
  void OpenAgain(const std::string& reason);
  void FillWork(proto::StepWork& work);
  absl::Status TakeResults(size_t worker,
                           const google::protobuf::RepeatedPtrField<proto::PackResult>& results);
  void TakeReport(size_t worker, const proto::FinishedReport& report);
  absl::Status CheckPacksRun(size_t reporter) const;
  void OnFailedReport(size_t worker, const proto::FinishedReport& report);
  absl::StatusOr<StepTotals> TotalOfStep(const std::vector<proto::PrepareReply>& replies) const;
  void PrepareStep();
  void OnPrepared(const std::vector<proto::PrepareReply>& replies);
  void CommitStep(const StepTotals& totals, const std::string& skipped);
  void OnCommitted(const std::vector<proto::CommitReply>& replies,
                   const proto::StepEvent& committed);

  // job_run_tell.cc
  void SetState(const std::string& state);
  void TellState();
  void TellWarning(const std::string& text);
  proto::StepEvent DescribeCommit(const StepTotals& totals, double learning_rate) const;
  void TakeCommitted(const proto::StepEvent& committed);
  std::vector<proto::JobEvent> TakeTraces();
  void TellStep(proto::StepEvent committed, const std::vector<proto::CommitReply>& replies);
  void Append(proto::JobEvent event);
  void Append(std::vector<proto::JobEvent> events);
  void RecordEvent(const proto::JobEvent& event);
  Json Held();
  void RecordStart();
  void Record(Json line);

  // job_run_checkpoint.cc
  void AfterCommit();
  void AwaitCheckpoint();
  void BeginCheckpoint();
  void OnCheckpointFolder(absl::StatusOr<std::string> path);
  void OnPinned();
  void OnShardsWritten(const std::vector<proto::WriteCheckpointReply>& replies);
  void OnShardFailed(int server, const absl::Status& status);
  void OnCheckpointDone(const absl::StatusOr<std::string>& path);
  void TakeCheckpoint(const std::string& path);
  void OnCheckpointFailed(const absl::Status& status);
  void GoOnAfterCheckpoint();
  bool IsSaved() const;  // version_, in the newest checkpoint
  bool CheckpointDue() const;

  // call_all.h
  template <typename Request, typename Reply>
  void CallAll(ServerMethod<Request, Reply> method,
               const std::type_identity_t<std::function<Request(int)>>& request,
               std::type_identity_t<std::function<void(std::vector<Reply>)>> then,
               std::function<void(int, const absl::Status&)> otherwise = nullptr);

  LoadedJob job_;
  JobEnvironment environment_;
  const std::shared_ptr<EventLog> events_;
  const int64_t first_version_;
  std::shared_ptr<ServerClient> control_;  // from Start on
  Phase phase_ = Phase::kWaiting;
  std::string state_;
  absl::Time state_since_;
  int64_t changes_ = 0;
  std::string waiting_for_;
  std::optional<absl::Time> waiting_since_;  // for members, with no job ahead
  bool stop_requested_ = false;
  bool suspended_ = false;  // stopped, and a later life goes on with it
  bool stopped_ = false;    // by wish
  bool restarts_ = false;
  std::optional<Takeover> takeover_;
  void EndBy(const Failure& failure);
  std::optional<Question> question_;  // AskForSuccessor
  std::optional<Failure> failure_;    // why the job ends, after a checkpoint
  bool interrupted_ = false;
  proto::SavedRun saved_;  // what the record has of it
  std::vector<Member> servers_;
  std::map<uint64_t, proto::ServerGpu> server_gpus_;  // by incarnation of who is configured
  int64_t told_generation_ = 0;  // of the map that all servers have begun a step by
  int64_t newest_generation_ = 0;
  std::vector<Member> spare_servers_;         // while it wants more
  std::map<uint64_t, Departure> departures_;  // servers that are to go, by incarnation
  std::vector<Member> kept_;
  absl::Time settled_at_ = absl::InfiniteFuture();  // cluster.elastic: of who comes and goes
  proto::ScaleReply scaling_;                       // of the last wish
  Waves waves_;
  KnownMaps known_maps_;
  Joiners joiners_;
  Replicas replicas_;
  std::optional<PartitionMove> move_;           // a wave, under way
  std::shared_ptr<ServerClient> move_control_;  // of move_->members
  std::shared_ptr<ServerClient> retired_control_;
  int64_t moves_ = 0;  // after which servers_ were others
  std::vector<Member> workers_;
  std::unordered_map<uint64_t, size_t> worker_at_;      // of workers_, by incarnation
  WorkerGroups groups_;                                 // of workers_
  std::vector<std::string> names_;                      // of workers_, with their places
  std::vector<proto::NextStepRequest::Pushes> pushes_;  // by worker, as they said last
  std::vector<char> absent_;         // by worker: lost, or another of its group is; counted often
  std::vector<bool> leaving_;        // by worker: it was told to
  std::vector<int64_t> formations_;  // by worker: of those that know each other
  int64_t formation_ = 0;            // the newest
  JoiningGroups joining_;
  std::vector<uint64_t> to_admit_;      // incarnations, until servers are asked to
  std::set<uint64_t> admitted_;         // by all servers
  std::vector<uint64_t> admitting_;     // servers are being asked to
  std::vector<uint64_t> lost_workers_;  // incarnations, until servers know
  std::set<uint64_t> unlike_;           // incarnations of another kind, once that is told
  absl::Time short_since_;              // in kShort
  std::string last_lost_;               // worker, and why

  int64_t loaded_version_ = 0;  // by the servers, at the run's begin
  int64_t version_ = 0;         // published by them
  double last_loss_ = 0;        // of step version_, or the last before it that was not skipped
  proto::GradientNorms norms_;  // up to it
  int64_t step_ = 0;            // in progress
  bool validating_ = false;     // before it
  std::optional<proto::ValidationEvent> validation_;  // the newest
  int64_t attempt_ = 0;
  int64_t attempts_before_ = 0;  // of the step to come, in earlier lives
  absl::Time step_opened_;
  absl::Time next_stall_notice_ = absl::InfiniteFuture();
  plan::StepPlan plan_;          // of step_
  int64_t plan_requested_ = 0;   // the step asked for last
  bool plan_validates_ = false;  // or of the validation before it
  size_t plan_groups_ = 0;       // for so many
  int64_t plan_requests_ = 0;
  std::optional<plan::StepPlan> next_plan_;                    // of step plan_requested_
  std::vector<proto::StepWork> work_;                          // by worker
  int64_t slots_ = 0;                                          // given out in the attempt
  int64_t failures_ = 0;                                       // of attempts of step_
  int64_t losses_ = 0;                                         // attempts of step_ they ended
  std::vector<bool> working_;                                  // by worker: it has work_
  std::vector<std::vector<int64_t>> redealt_;                  // packs that wait for a group
  std::vector<std::optional<proto::FinishedReport>> reports_;  // by worker, over all rounds
  std::vector<int64_t> rounds_run_;                            // by worker: those with packs
  std::vector<absl::Time> reported_at_;                        // by worker
  std::optional<plan::PackLedger> ledger_;                     // of the attempt
  std::optional<plan::DrawQueue> draws_;                       // of the attempt, where drawn
  std::optional<StepMeasurements> measurements_;               // from Start on
  double predicted_idle_share_ = 0;                            // of step_
  std::vector<proto::LastStep> last_steps_;                    // by worker
  double mfu_ = 0;                                             // of the last committed step

  std::optional<CompleteCheckpoint> newest_checkpoint_;
  std::string best_checkpoint_;  // at the end: that of the lowest validation loss, if it is there
  bool checkpoint_in_progress_ = false;
  CompleteCheckpoint checkpoint_;  // the one in progress
  absl::Time checkpoint_started_;  // of the last one; where there is none, of training
  int64_t checkpoint_bytes_ = 0;   // of its shards, once all are there
  absl::Time checkpoint_again_ = absl::InfiniteFuture();  // after one that failed
  int failed_checkpoints_ = 0;                            // since the last that did not
  std::vector<Member> unreachable_;
  std::set<uint64_t> gone_;               // incarnations of members no more
  std::map<size_t, absl::Time> holders_;  // servers to release; when to ask again
  bool cleared_ = false;
  std::optional<RecordQueue> record_;  // last: writes the rest when it goes
};

}  // namespace shoal::server

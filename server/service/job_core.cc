#include "server/service/job_core.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/status.h"
#include "core/base/testing/planted.h"
#include "core/transport/push_header.h"
#include "server/copy/gradient_sender.h"
#include "server/copy/state_copy.h"

namespace shoal::server {
namespace {

constexpr size_t kMostAdmitted = 1 << 20;  // over the job's life
constexpr size_t kMaxClientName = 100;

proto::AttemptPhase ToMessage(Phase phase) {
  switch (phase) {
    case Phase::kReady:
      return proto::ATTEMPT_PHASE_NONE;
    case Phase::kOpen:
      return proto::ATTEMPT_PHASE_OPEN;
    case Phase::kSealed:
      return proto::ATTEMPT_PHASE_SEALED;
    case Phase::kFailed:
    case Phase::kCommitting:  // no command is under way
      return proto::ATTEMPT_PHASE_FAILED;
  }
  return proto::ATTEMPT_PHASE_FAILED;
}

proto::PrepareReply ToMessage(const std::vector<PartitionStatistics>& sealed) {
  proto::PrepareReply reply;
  for (const PartitionStatistics& statistics : sealed) {
    reply.add_partitions(statistics.partition);
    reply.add_sums_of_squares(statistics.gradient.sum_of_squares);
    reply.add_non_finite(statistics.gradient.non_finite);
    reply.add_pushes(statistics.pushes);
  }
  return reply;
}

absl::StatusOr<google::protobuf::RepeatedPtrField<proto::PartitionChecksum>> ChecksumsOf(
    const JobStore& store) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<PartitionChecksum> checksums, store.Checksums());
  google::protobuf::RepeatedPtrField<proto::PartitionChecksum> all;
  for (const PartitionChecksum& checksum : checksums) {
    proto::PartitionChecksum& partition = *all.Add();
    partition.set_partition(checksum.partition);
    partition.set_hash(checksum.hash);
  }
  return all;
}

}  // namespace

JobCore::JobCore(Options options, JobStore* store, JobStore* backups, rpc::NewestTerm* term)
    : options_(std::move(options)),
      store_(*store),
      backups_(*backups),
      term_(*term),
      state_(store->version(), options_.generation) {}

StepState JobCore::state() const {
  absl::ReaderMutexLock lock(&state_mutex_);
  return state_;
}

bool JobCore::IsFenced(uint64_t incarnation) const {
  absl::ReaderMutexLock lock(&state_mutex_);
  return fenced_.contains(incarnation);
}

bool JobCore::HasAdmitted(uint64_t incarnation) const {
  absl::ReaderMutexLock lock(&state_mutex_);
  return admitted_.contains(incarnation);
}

absl::StatusOr<proto::TakeOverReply> JobCore::TakeOver(const proto::TakeOverRequest& request,
                                                       const std::function<void()>& give_up) {
  // Waits for a command of the earlier life that is under way.
  absl::MutexLock commands(&commands_mutex_);
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "TakeOver"));
  give_up();
  proto::TakeOverReply reply;
  reply.set_holds(true);
  *reply.mutable_committed() = committed_;
  absl::MutexLock state(&state_mutex_);
  reply.set_version(state_.version());
  reply.set_generation(state_.generation());
  reply.set_step(state_.step());
  reply.set_attempt(state_.attempt());
  reply.set_phase(ToMessage(state_.phase()));
  reply.set_partitions(std::ssize(store_.held()) + std::ssize(backups_.held()));
  return reply;
}

absl::StatusOr<proto::BeginAttemptReply> JobCore::BeginAttempt(
    const proto::BeginAttemptRequest& request, const std::function<void()>& begun) {
  absl::MutexLock commands(&commands_mutex_);
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "BeginAttempt"));
  if (request.run() != options_.run) {
    return FailedPrecondition("BeginAttempt is of run {}, and this server is in run {}",
                              request.run(), options_.run);
  }
  // Waits for pushes being applied, and keeps others out while accumulators are cleared.
  absl::MutexLock state(&state_mutex_);
  StepState next = state_;
  if (request.has_held() && request.generation() > next.generation()) {
    next.Moved(request.generation(), HoldsNothing() ? request.step() - 1 : next.version());
  }
  SHOAL_ASSIGN_OR_RETURN(
      const Decision decision,
      next.BeginAttempt(request.step(), request.attempt(), request.generation()));
  if (decision == Decision::kExecute) {
    SHOAL_RETURN_IF_ERROR(store_.failure());
    SHOAL_RETURN_IF_ERROR(Hold(request));
    store_.Clear({request.unit_pushes().data(), static_cast<size_t>(request.unit_pushes_size())});
    backups_.Clear();
    replicated_ = replicated_ && SHOAL_PLANTED("gradient-again");
    state_ = next;
    state_.Opened(request.step(), request.attempt());
    DisconnectLost(request);
    begun();
  }
  return proto::BeginAttemptReply();
}

// What it holds from this attempt on. What was reserved for more is given back.
absl::Status JobCore::Hold(const proto::BeginAttemptRequest& request) {
  if (request.generation() > state_.generation()) {
    const std::set<int> held(request.held().partitions().begin(),
                             request.held().partitions().end());
    const std::set<int> backups(request.held().backups().begin(), request.held().backups().end());
    if (!store_.Has(held) || !backups_.Has(backups)) {
      return FailedPrecondition(
          "step {} is to begin with partitions that did not come to this server (shard map "
          "generation {})",
          request.step(), request.generation());
    }
    store_.Keep(held, request.step() - 1);
    backups_.Keep(backups, request.step() - 1);
  }
  store_.DropArriving();
  backups_.DropArriving();
  is_reserved_ = false;
  return absl::OkStatus();
}

// Whether these have arrived, all that are to.
bool JobCore::AreHere(const std::set<int>& partitions, int64_t version) const {
  const auto has = [version](const JobStore& store, int partition) {
    return store.arriving() != nullptr && store.arriving()->store->version() == version &&
           store.arriving()->store->Find(partition) != nullptr;
  };
  return !partitions.empty() && std::ranges::all_of(partitions, [&](int partition) {
    return has(store_, partition) || has(backups_, partition);
  });
}

absl::Status JobCore::CheckReserved(const google::protobuf::RepeatedField<int32_t>& comes,
                                    const JobStore& store) const {
  for (const int id : comes) {
    if (id < 0 || id >= options_.partitions || store.Find(id) != nullptr) {
      return InvalidArgument("partition {} cannot come to this server: {}", id,
                             store.Find(id) != nullptr ? "it is here" : "the job has none");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<proto::ReserveReply> JobCore::Reserve(
    const proto::ReserveRequest& request, const std::function<absl::StatusOr<int64_t>()>& reserve) {
  absl::MutexLock commands(&commands_mutex_);
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "Reserve"));
  SHOAL_RETURN_IF_ERROR(store_.failure());
  const int64_t newest = std::max(state().generation(), reserved_.generation());
  const bool repeated = is_reserved_ && reserved_.generation() == request.generation();
  if (!repeated && request.generation() <= newest) {
    return FailedPrecondition("Reserve for shard map generation {} comes late: this server has {}",
                              request.generation(), newest);
  }
  if (!repeated) {
    SHOAL_RETURN_IF_ERROR(CheckReserved(request.partitions(), store_));
    SHOAL_RETURN_IF_ERROR(CheckReserved(request.backups(), backups_));
    is_reserved_ = false;
    SHOAL_ASSIGN_OR_RETURN(reserved_bytes_, reserve());
    reserved_ = request;
    is_reserved_ = true;
  }
  proto::ReserveReply reply;
  reply.set_bytes(reserved_bytes_);
  return reply;
}

absl::StatusOr<proto::FetchReply> JobCore::Fetch(const proto::FetchRequest& request,
                                                 const Act& fetch) {
  absl::MutexLock commands(&commands_mutex_);
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "Fetch"));
  if (!is_reserved_ || reserved_.generation() != request.generation()) {
    return FailedPrecondition("nothing is reserved here for shard map generation {}",
                              request.generation());
  }
  std::set<int> all;
  std::set<int> from_others;
  for (const proto::PartitionSource& source : request.sources()) {
    all.insert(source.partitions().begin(), source.partitions().end());
    if (!source.address().empty()) {
      from_others.insert(source.partitions().begin(), source.partitions().end());
    }
  }
  std::set<int> wanted(reserved_.partitions().begin(), reserved_.partitions().end());
  wanted.insert(reserved_.backups().begin(), reserved_.backups().end());
  const auto reserved = std::ranges::count_if(all, [&](int id) { return wanted.contains(id); });
  if (reserved != std::ssize(all)) {
    return InvalidArgument("{} of the {} partitions that are to come are reserved", reserved,
                           all.size());
  }
  if (!AreHere(all, request.version())) {
    SHOAL_RETURN_IF_ERROR(fetch());
  }
  proto::FetchReply reply;
  for (const JobStore* const store : {&store_, &backups_}) {
    if (store->arriving() == nullptr) {
      continue;
    }
    for (const auto& partition : store->arriving()->store->partitions()) {
      const plan::PartitionSpec& spec = partition->spec();
      const bool moves = spec.frozen ? store == &store_ : from_others.contains(spec.id);
      reply.set_bytes(reply.bytes() + (moves ? spec.moved_bytes() : 0));
    }
  }
  return reply;
}

absl::StatusOr<proto::ReadStateReply> JobCore::ReadState(const proto::ReadStateRequest& request,
                                                         std::span<std::byte> slot) const {
  absl::ReaderMutexLock lock(&state_mutex_);
  if (state_.phase() == Phase::kCommitting) {
    return FailedPrecondition("state cannot be read now: {}", state_.Describe());
  }
  const bool gradient = request.array() == proto::ReadStateRequest::ARRAY_GRADIENT;
  const Partition* const partition = store_.Find(request.partition());
  const bool complete = partition != nullptr && partition->complete() && state_.TakesPushes();
  if (gradient && ((state_.phase() != Phase::kSealed && !complete) ||
                   !state_.IsCurrentAttempt(request.version() + 1, request.attempt()))) {
    return FailedPrecondition("the gradient of step {} attempt {} is wanted: {}",
                              request.version() + 1, request.attempt(), state_.Describe());
  }
  return server::ReadState(gradient || partition != nullptr ? store_ : backups_, request, slot);
}

void JobCore::DisconnectLost(const proto::BeginAttemptRequest& request) {
  for (const uint64_t lost : request.lost_worker()) {
    if (!SHOAL_PLANTED("fence-forgotten") && fenced_.insert(lost).second) {
      options_.disconnect(lost);
    }
  }
}

absl::StatusOr<proto::PrepareReply> JobCore::Prepare(const proto::PrepareRequest& request) {
  absl::MutexLock commands(&commands_mutex_);
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "Prepare"));
  // Waits for pushes being applied, and for gradients that are read; later ones find it sealed.
  absl::MutexLock state(&state_mutex_);
  SHOAL_ASSIGN_OR_RETURN(const Decision decision,
                         state_.Prepare(request.step(), request.attempt()));
  if (decision == Decision::kRepeat) {
    return prepared_;
  }
  state_.Sealed();
  prepared_.Clear();
  const auto sealed = store_.Seal();
  if (!sealed.ok()) {
    // Keeps later Prepares of this attempt from repeating the first one's answer.
    state_.SealingFailed();
    return Annotate(sealed.status(), fmt::format("step {}: adding gradients", request.step()));
  }
  prepared_ = ToMessage(*sealed);
  return prepared_;
}

absl::StatusOr<proto::ReplicateReply> JobCore::Replicate(const proto::ReplicateRequest& request,
                                                         const Act& replicate) {
  absl::MutexLock commands(&commands_mutex_);
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "Replicate"));
  if (const StepState at = state();
      at.phase() != Phase::kSealed || !at.IsCurrentAttempt(request.step(), request.attempt())) {
    return FailedPrecondition("cannot replicate step {} attempt {}: {}", request.step(),
                              request.attempt(), at.Describe());
  }
  if (!replicated_ && !backups_.held().empty() && !SHOAL_PLANTED("gradient-unreplicated")) {
    SHOAL_RETURN_IF_ERROR(replicate());
  }
  replicated_ = true;
  proto::ReplicateReply reply;
  for (const JobStore::Held& held : backups_.held()) {
    reply.set_bytes(reply.bytes() + held.partition->spec().trained() * kGradientBytes);
  }
  return reply;
}

absl::StatusOr<proto::TakeGradientReply> JobCore::TakeGradient(
    const proto::TakeGradientRequest& request) {
  proto::TakeGradientReply reply;
  absl::ReaderMutexLock lock(&state_mutex_);
  if (!state_.TakesPushes() || !state_.IsCurrentAttempt(request.step(), request.attempt())) {
    reply.set_late(true);
    return reply;
  }
  Partition* const partition = backups_.Find(request.partition());
  if (partition == nullptr) {
    return NotFound("partition {} is not backed up here", request.partition());
  }
  SHOAL_ASSIGN_OR_RETURN(const std::vector<float> elements, ElementsOf(request));
  SHOAL_RETURN_IF_ERROR(partition->TakeGradient(request.offset(), elements));
  return reply;
}

absl::Status Apply(const proto::CommitRequest& request, JobStore& store,
                   const Store::Ready& ready) {
  return request.skipped().empty() ? store.Commit(request.step(), request.learning_rate(),
                                                  request.clip_coefficient(), ready)
                                   : store.Skip(request.step(), ready);
}

absl::Status JobCore::CommitStores(const proto::CommitRequest& request, const Act& update) {
  SHOAL_RETURN_IF_ERROR(update());
  return SHOAL_PLANTED("backup-left-behind") ? absl::OkStatus() : Apply(request, backups_);
}

absl::StatusOr<proto::CommitReply> JobCore::Commit(const proto::CommitRequest& request,
                                                   const Act& update) {
  absl::MutexLock commands(&commands_mutex_);
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "Commit"));
  proto::CommitReply reply;
  reply.set_version(request.step());
  {
    absl::MutexLock state(&state_mutex_);
    SHOAL_ASSIGN_OR_RETURN(const Decision decision,
                           state_.Commit(request.step(), request.attempt()));
    if (decision == Decision::kRepeat) {
      return reply;
    }
    if (!backups_.held().empty() && !replicated_) {
      return FailedPrecondition(
          "cannot commit step {} attempt {}: backups have not got its gradients", request.step(),
          request.attempt());
    }
    state_.Committing();
  }
  if (const absl::Status committed = CommitStores(request, update); !committed.ok()) {
    return Annotate(committed, fmt::format("step {}: updating weights", request.step()));
  }
  committed_ = request;
  absl::MutexLock state(&state_mutex_);
  state_.Committed();
  return reply;
}

absl::Status JobCore::Pin(const proto::WriteCheckpointRequest& request, const Act& pin) {
  absl::MutexLock commands(&commands_mutex_);
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "WriteCheckpoint"));
  SHOAL_RETURN_IF_ERROR(store_.failure());
  return pin();
}

absl::StatusOr<proto::GetChecksumsReply> JobCore::GetChecksums() {
  absl::MutexLock commands(&commands_mutex_);
  proto::GetChecksumsReply reply;
  reply.set_version(store_.version());
  SHOAL_ASSIGN_OR_RETURN(*reply.mutable_partitions(), ChecksumsOf(store_));
  SHOAL_ASSIGN_OR_RETURN(*reply.mutable_backups(), ChecksumsOf(backups_));
  return reply;
}

absl::StatusOr<proto::AdmitClientsReply> JobCore::AdmitClients(
    const proto::AdmitClientsRequest& request) {
  // Beside other commands: who joins need not wait for a commit.
  SHOAL_RETURN_IF_ERROR(term_.Admit(request.term(), "AdmitClients"));
  absl::MutexLock state(&state_mutex_);
  size_t added = 0;
  for (const uint64_t incarnation : request.incarnation()) {
    added += admitted_.contains(incarnation) ? 0 : 1;
  }
  if (admitted_.size() + added > kMostAdmitted) {
    return ResourceExhausted("{} clients were admitted already", admitted_.size());
  }
  admitted_.insert(request.incarnation().begin(), request.incarnation().end());
  return proto::AdmitClientsReply();
}

void JobCore::Fence(uint64_t incarnation) {
  if (SHOAL_PLANTED("fence-forgotten")) {
    return;
  }
  {
    absl::MutexLock state(&state_mutex_);
    fenced_.insert(incarnation);
  }
  options_.disconnect(incarnation);
}

absl::Status JobCore::CheckClient(const proto::ConnectRequest& request) const {
  if (request.layout_version() != transport::kDataLayoutVersion) {
    return FailedPrecondition(
        "{} speaks data layout {}, this server {}: use the same version of shoal everywhere",
        request.client(), request.layout_version(), transport::kDataLayoutVersion);
  }
  if (request.incarnation() == 0 || request.client().empty() ||
      request.client().size() > kMaxClientName) {
    return InvalidArgument("a client needs an incarnation and a name of at most {} bytes",
                           kMaxClientName);
  }
  absl::ReaderMutexLock lock(&state_mutex_);
  if (request.generation() != state_.generation()) {
    return FailedPrecondition("{} works with shard map generation {}, this server with {}",
                              request.client(), request.generation(), state_.generation());
  }
  if (fenced_.contains(request.incarnation())) {
    return PermissionDenied("{} is fenced: its lease is over", request.client());
  }
  if (!request.read_only() && !admitted_.contains(request.incarnation())) {
    return PermissionDenied(
        "{} (incarnation {:x}) is no worker of {}: the coordinator has not named it",
        request.client(), request.incarnation(), request.job_id());
  }
  return absl::OkStatus();
}

PushVerdict JobCore::TakePush(const ClientIdentity& client, const transport::PushHeader& header,
                              const PushPayload& payload) {
  using absl::StatusCode;
  absl::ReaderMutexLock lock(&state_mutex_);
  if (header.incarnation != client.incarnation || fenced_.contains(client.incarnation)) {
    return {.code = StatusCode::kPermissionDenied};
  }
  if (header.generation != state_.generation()) {
    return {.code = StatusCode::kFailedPrecondition};
  }
  if (header.partition < 0 || header.partition >= options_.partitions || header.key < 1 ||
      header.dtype != static_cast<uint32_t>(options_.gradient_type) ||
      !transport::IsKnown(header)) {
    return {.code = StatusCode::kInvalidArgument};
  }
  Partition* const partition = store_.Find(header.partition);
  if (partition == nullptr) {
    return {.code = StatusCode::kNotFound};
  }
  const auto bytes = static_cast<size_t>(partition->spec().count * SizeOf(options_.gradient_type));
  if (partition->spec().frozen) {
    return {.code = StatusCode::kUnimplemented};
  }
  if (header.count != partition->spec().count || bytes > payload.bytes.size()) {
    return {.code = StatusCode::kInvalidArgument};
  }
  if (!state_.IsCurrentAttempt(header.step, header.attempt) &&
      !SHOAL_PLANTED("attempt-unchecked")) {
    return {.code = StatusCode::kFailedPrecondition};
  }
  if (!state_.TakesPushes()) {
    // Sealed, but still recognises earlier pushes.
    return partition->Contains(header.key) ? PushVerdict{.applied_before = true}
                                           : PushVerdict{.code = StatusCode::kFailedPrecondition};
  }
  if (payload.place == PayloadMemory::kHost &&
      !transport::Matches(header, payload.bytes.first(bytes))) {
    return {.code = StatusCode::kDataLoss};
  }
  const Partition::PushOutcome outcome =
      partition->ApplyPush(header.key, options_.gradient_type, payload.bytes.data(), payload.place);
  return {
      .code = outcome.code, .applied_before = outcome.applied_before, .complete = outcome.complete};
}

absl::StatusOr<bool> PinsCheckpoint(const proto::WriteCheckpointRequest& request,
                                    const std::optional<PinnedCheckpoint>& newest,
                                    int64_t published) {
  const bool same = newest.has_value() && newest->version == request.version() &&
                    newest->directory == request.directory();
  // `begin` for a finished one is a new try in an emptied folder, or has come late.
  if (same && !(request.begin() && newest->done && !newest->kept)) {
    return false;
  }
  if (newest.has_value() && !newest->done) {
    return FailedPrecondition(
        "cannot write the checkpoint of step {}: that of step {} in {} is still being written",
        request.version(), newest->version, newest->directory);
  }
  if (request.version() != published) {
    return FailedPrecondition("cannot write the checkpoint of step {}: version {} is published",
                              request.version(), published);
  }
  return true;
}

}  // namespace shoal::server

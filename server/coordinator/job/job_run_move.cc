// More servers, or fewer, while a job trains: between two steps partitions are copied to the
// servers that are to have them, then the map that says so is recorded, and the next step begins by
// it. Until it is recorded nothing has changed: what was reserved is given back, and the job goes
// on as it was. Steps wait for that; where a wish has a rate it is done in waves, with steps
// between (core/plan/placement/move_pace.h), each planned from where partitions are then.
#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/base/testing/planted.h"
#include "core/job/shard_map_message.h"
#include "core/plan/memory/server_memory.h"
#include "core/plan/placement/placement.h"
#include "server/coordinator/job/job_run.h"

namespace shoal::server {
namespace {

constexpr int64_t kGenerationsOfALife = int64_t{1} << 20;
constexpr int kMostWavesTold = 64;

// Whoever was told by a signal to leave may be ended some time after it.
bool IsUrgent(const std::map<uint64_t, Departure>& departures) {
  return std::ranges::any_of(departures,
                             [](const auto& departure) { return !departure.second.drained; });
}

// What comes takes memory of GPUs, and what goes gives none back before all that came with it does.
void CountInGpus(const PartitionMove& move, const LoadedJob& job,
                 std::map<uint64_t, proto::ServerGpu>& gpus) {
  for (const auto& [member, ids] : move.comes) {
    std::vector<plan::PartitionSpec> comes;
    for (const int id : ids) {
      comes.push_back(job.pushes.partitions[static_cast<size_t>(id)]);
    }
    proto::ServerGpu& gpu = gpus[move.members[static_cast<size_t>(member)].incarnation];
    if (!gpu.gpu().empty()) {
      gpu.set_taken_bytes(gpu.taken_bytes() +
                          plan::PlanServerGpuMemory(comes, job.job.service.accumulate).total());
    }
  }
}

// As plan::MapChange has them.
std::vector<int> PlacesAfter(const std::vector<Member>& before, const std::vector<Member>& after) {
  std::vector<int> places;
  for (const Member& server :
       AreSame(before, after) ? std::span<const Member>() : std::span(before)) {
    const auto found = std::ranges::find(after, server.incarnation, &Member::incarnation);
    places.push_back(found == after.end() ? plan::MapChange::kGone
                                          : static_cast<int>(found - after.begin()));
  }
  return places;
}

}  // namespace

// Servers may have heard of generations that this life knows nothing of.
int64_t JobRun::NextGeneration() {
  newest_generation_ = std::max({newest_generation_, job_.shard_map.generation,
                                 environment_.term * kGenerationsOfALife}) +
                       1;
  return newest_generation_;
}

// Servers have what the map says once they have begun a step by it.
bool JobRun::CanMove() const {
  return IsToMove() && IsSettled() && !AtEnd() && told_generation_ == job_.shard_map.generation &&
         (environment_.clock.Now() >= waves_.next ||
          (replicas() == 1 && (IsShort() || IsUrgent(departures_))));
}

bool JobRun::IsToMove() const {
  return ServersToBe() != std::ssize(servers_) || !departures_.empty() || waves_.follow;
}

// Between steps. False: nothing is to be moved, or not now.
bool JobRun::BeginMove() {
  if (!IsToMove()) {
    ReleaseJoiners();
  }
  if (!CanMove()) {
    waves_.held_up_by.reset();
    return false;
  }
  const absl::StatusOr<bool> ready = IsReadyToMove();
  if (!ready.ok()) {
    phase_ = Phase::kMoving;
    waves_.began = settled_at_ = environment_.clock.Now();
    GiveUpMove(std::string(Message(ready.status())));
    OpenStep();
    return true;
  }
  if (!*ready) {
    return BackUpMeanwhile();
  }
  if (WaveAtHand().relocations.empty() && !LacksBackups()) {
    waves_.follow = false;  // after another wish, or an earlier life did the last
    SetBytesLeft(0);
  }
  if (!IsToMove()) {
    return false;
  }
  if (checkpoint_in_progress_) {  // it reads partitions where they are
    const bool another = waves_.held_up_by.value_or(checkpoint_.step) != checkpoint_.step;
    if (another && checkpoint_.step == version_) {
      AwaitCheckpoint();  // else each is followed by the next
      return true;
    }
    waves_.held_up_by = waves_.held_up_by.value_or(checkpoint_.step);
    return false;
  }
  waves_.held_up_by.reset();
  if (const int64_t servers = ServersToBe(); IsElastic() && servers != job_.servers) {
    Wish(servers, /*rate=*/0);
    WaveAtHand();
  }
  BeginWave();
  return true;
}

std::vector<int> JobRun::PlacesToBe() const {
  return server::PlacesToBe(servers_, Leaving(), ServersToBe());
}

WaveKey JobRun::NextWave() const {
  WaveKey key{.generation = job_.shard_map.generation,
              .places = PlacesToBe(),
              .ended = waves_.follow ? waves_.ended : 0};
  // In a GPU what each wave brings has streams and memory for them of its own.
  const bool at_once = waves_.rate == 0 || IsShort() || IsUrgent(departures_) ||
                       job_.job.service.memory == plan::PartitionMemory::kCuda;
  if (!at_once) {
    key.pace = waves_.pace;
  }
  for (const Member& server : servers_) {
    key.members.push_back(server.incarnation);
  }
  for (const Member& joiner : JoinersOf(servers_, spare_servers_, key.places)) {
    key.members.push_back(joiner.incarnation);
  }
  return key;
}

// While workers compute: where nothing changes until the border, steps do not wait for it.
void JobRun::PlanWaveAhead() {
  if (phase_ != Phase::kRunning || replicas() > 1 || !IsToMove() || !IsSettled()) {
    return;
  }
  WaveKey key = NextWave();
  if (key.places.empty() || waves_.ahead_asked == key) {
    return;
  }
  waves_.ahead_asked = key;
  environment_.plan([this, now = job_.shard_map, servers = servers_,
                     joiners = JoinersOf(servers_, spare_servers_, key.places),
                     rest = waves_.Rest(key), key = std::move(key)] {
    auto wave = std::make_shared<PlannedWave>(
        PlanWave(key, job_.pushes.partitions, now, servers, joiners, rest));
    environment_.post([this, wave] { waves_.ahead = std::move(*wave); });
  });
}

// The wave that begins now, if one does: planned here where what was planned ahead does not fit.
PlannedWave& JobRun::WaveAtHand() {
  WaveKey key = NextWave();
  const bool fits = waves_.ahead.has_value() && waves_.ahead->key == key;
  if (!fits && replicas() == 1) {
    environment_.reached("planned at the border");
    waves_.ahead = PlanWave(key, job_.pushes.partitions, job_.shard_map, servers_,
                            JoinersOf(servers_, spare_servers_, key.places), waves_.Rest(key));
  } else if (!fits) {  // BeginWave makes the rest
    PlannedWave& wave = waves_.ahead.emplace();
    wave.relocations = plan::PlanRelocations(job_.pushes.partitions, job_.shard_map, key.places);
    wave.key = std::move(key);
  }
  return *waves_.ahead;
}

// Those that come must have loaded the job. Not OK: it cannot be at all.
absl::StatusOr<bool> JobRun::IsReadyToMove() {
  SHOAL_RETURN_IF_ERROR(CheckDepartures(Leaving(), job_.servers));
  return LoadJoiners(JoinersOf(servers_, spare_servers_, PlacesToBe()));
}

void JobRun::BeginWave() {
  const absl::Time now = environment_.clock.Now();
  PlannedWave wave = *std::exchange(waves_.ahead, std::nullopt);
  waves_.ahead_asked.reset();
  waves_.ended = wave.key.ended;
  waves_.rest_generation = 0;
  if (replicas() > 1) {
    const plan::ShardMap target = TargetOf(wave.key.places);
    wave.bytes_left = plan::MovedBytes(job_.pushes.partitions, job_.shard_map, target);
    wave.move = PlanMoveTo(job_.shard_map, target, servers_,
                           JoinersOf(servers_, spare_servers_, wave.key.places), wave.key.places,
                           /*lost=*/{}, /*bytes_left=*/0);
  } else {
    waves_.rest.assign(wave.relocations.begin() + wave.move.partitions, wave.relocations.end());
    waves_.rest_places = wave.key.places;
  }
  move_ = std::move(wave.move);
  move_->map.generation = NextGeneration();
  if (!waves_.reserved.Reach(*move_)) {
    move_->map.generation = NextGeneration();  // who knows the map of before connects anew
  }
  phase_ = Phase::kMoving;
  waves_.follow = move_->bytes_left > 0 && !SHOAL_PLANTED("waves-forgotten");
  waves_.began = now;
  settled_at_ = waves_.follow ? now : absl::InfiniteFuture();
  SetBytesLeft(wave.bytes_left);
  SetState(fmt::format("moving state: {} to {} servers", servers_.size(), wave.key.places.size()));
  ++waves_.number;
  move_control_ = move_->members.size() == servers_.size()
                      ? control_
                      : environment_.make_clients(move_->members);
  ReserveForMove();
}

template <typename Request, typename Reply>
void JobRun::CallForMove(
    ServerMethod<Request, Reply> method, std::map<int, Request>& requests,
    const std::type_identity_t<std::function<void(std::map<int, Reply>)>>& then) {
  if (requests.empty()) {
    then({});
    return;
  }
  auto replies = std::make_shared<std::map<int, Reply>>();
  for (auto& [member, request] : requests) {
    request.set_job_id(job_.id);
    request.set_term(environment_.term);
    const auto on_reply = [this, replies, then, member = member, number = waves_.number,
                           missing = requests.size()](const absl::StatusOr<Reply>& reply) {
      if (closed() || !move_.has_value() || number != waves_.number ||
          EndsBySuccessor(reply.status())) {
        return;
      }
      if (!reply.ok()) {
        OnMoveFailed(static_cast<size_t>(member), reply.status());
        return;
      }
      (*replies)[member] = *reply;
      if (replies->size() == missing) {
        then(std::move(*replies));
      }
    };
    move_control_->Call(member, method, std::move(request),
                        [post = environment_.post, on_reply](const absl::StatusOr<Reply>& reply) {
                          post([on_reply, reply] { on_reply(reply); });
                        });
  }
}

void JobRun::ReserveForMove() {
  for (auto& [member, request] : move_->reserves) {
    request.set_generation(move_->map.generation);
  }
  CallForMove(&rpc::ParameterServerService::Reserve, move_->reserves, [this](const auto&) {
    environment_.reached("reserved");
    waves_.reserved_at = environment_.clock.Now();
    SHOAL_PLANTED("state-unawaited") ? EndWave(0) : FetchForMove();
  });
}

void JobRun::FetchForMove() {
  for (auto& [member, request] : move_->fetches) {
    request.set_generation(move_->map.generation);
    request.set_version(version_);
  }
  CallForMove(&rpc::ParameterServerService::Fetch, move_->fetches, [this](const auto& replies) {
    environment_.reached("fetched");
    int64_t bytes = 0;
    for (const auto& [member, reply] : replies) {
      bytes = (SHOAL_PLANTED("bytes-of-one") ? 0 : bytes) + reply.bytes();
    }
    EndWave(bytes);
  });
}

// From the record on the new map counts, and workers are to join anew.
void JobRun::EndWave(int64_t bytes) {
  const std::vector<Member> servers_before = std::exchange(servers_, move_->after);
  move_->forms.generation = move_->map.generation;
  plan::ShardMap map_before = std::exchange(job_.shard_map, std::move(move_->map));
  known_maps_.forms = std::move(move_->forms);
  const std::vector<int64_t> formations_before =
      std::exchange(formations_, std::vector(workers_.size(), ++formation_));
  if (const absl::Status saved =
          SHOAL_PLANTED("move-unrecorded")
              ? absl::OkStatus()
              : environment_.store.SaveRun(job_.id, DescribeRun(), /*begins=*/false);
      !saved.ok()) {
    servers_ = servers_before;
    job_.shard_map = std::move(map_before);
    formations_ = formations_before;
    if (EndsBySuccessor(saved)) {
      return;
    }
    if (!replicas_.lost.empty()) {
      RecoverAgain(saved);
      return;
    }
    GiveUpMove(std::string(Message(saved)));
    OpenStep();
    return;
  }
  if (replicas() == 1 && AreSame(servers_, servers_before) &&
      waves_.rest_places.back() < std::ssize(servers_)) {  // else places are others'
    waves_.rest_generation = job_.shard_map.generation;
  }
  joining_.Reform(formation_);
  environment_.reached("moved");
  TellWave(bytes, servers_before.size());
  PartitionMove move = std::move(*move_);
  move_.reset();
  known_maps_.history.Add(map_before.generation, job_.shard_map,
                          PlacesAfter(servers_before, servers_), std::move(move.changed));
  CountInGpus(move, job_, server_gpus_);
  ReleaseAt(*move_control_, move.leavers);
  for (const int leaver : move.leavers) {
    joiners_.loaded.erase(move.members[static_cast<size_t>(leaver)].incarnation);
  }
  std::erase_if(server_gpus_, [this](const auto& gpu) {
    return !TakesPart(gpu.first) && !joiners_.loaded.contains(gpu.first);
  });
  if (!AreSame(servers_, servers_before)) {
    Retire(std::exchange(control_, environment_.make_clients(servers_)));
    std::erase_if(spare_servers_,
                  [this](const Member& spare) { return TakesPart(spare.incarnation); });
    std::erase_if(departures_, [this](const auto& server) { return !TakesPart(server.first); });
    ++moves_;
    AdmitAgain();
  }
  environment_.plan([large = std::make_shared<std::pair<plan::ShardMap, PartitionMove>>(
                         std::move(map_before), std::move(move))]() mutable { large.reset(); });
  EndRecovery();
  // Last, so that its calls to those that leave go on.
  Retire(std::move(move_control_));
  OpenStep();
}

void JobRun::TellWave(int64_t bytes, size_t servers_before) {
  proto::Wave& wave = *scaling_.add_waves();
  wave.set_step(version_ + 1);
  wave.set_bytes(bytes);
  if (scaling_.waves_size() > kMostWavesTold) {
    scaling_.mutable_waves()->DeleteSubrange(0, 1);
  }
  ++waves_.ended;
  if (waves_.rate > 0 && replicas() == 1) {
    waves_.next = waves_.began + plan::BeforeNextWave(bytes, waves_.rate);
  }
  SetBytesLeft(waves_.follow ? move_->bytes_left : 0);
  scaling_.set_bytes_moved(scaling_.bytes_moved() + bytes);
  environment_.metrics.moved_bytes.Increment(static_cast<double>(bytes));
  scaling_.set_partitions_moved(scaling_.partitions_moved() + move_->partitions);
  scaling_.clear_refusal();
  LogInfo("{} goes on with {} servers: {} of state in {} partitions moved, {} are left", job_.id,
          servers_.size(), FormatBytes(bytes), move_->partitions, FormatBytes(move_->bytes_left));
  Record({{"event", "moved"},
          {"step", version_ + 1},
          {"servers", servers_.size()},
          {"servers_before", servers_before},
          {"bytes", bytes},
          {"partitions", move_->partitions},
          {"held", Held()}});
}

// Its calls go on; those of the one before are over, or nobody waits for them. They must not end
// under the owner's lock.
void JobRun::Retire(std::shared_ptr<ServerClient> control) {
  environment_.plan(
      [before = std::exchange(retired_control_, std::move(control))]() mutable { before.reset(); });
}

void JobRun::OnMoveFailed(size_t member, const absl::Status& status) {
  const Member failed = move_->members[member];
  const bool lost = IsLoss(status);
  if (lost && IsReplaced(failed)) {
    unreachable_.push_back(failed);
    Lose(failed, std::string(Message(status)), /*asked=*/false);
    return;
  }
  if (!lost && !replicas_.lost.empty()) {
    RecoverAgain(status);
    return;
  }
  GiveUpMove(fmt::format("{}: {}", NameOf(failed), Message(status)));
  if (lost) {
    unreachable_.push_back(failed);
    if (member < servers_.size()) {
      Lose(failed, std::string(Message(status)), /*asked=*/false);
    }
  }
  if (phase_ == Phase::kMoving) {
    OpenStep();
  }
}

// The job goes on with the servers that it has.
void JobRun::GiveUpMove(const std::string& why) {
  if (GiveUpMeanwhile(why)) {
    return;
  }
  LogWarning("{} keeps its {} servers: {}", job_.id, servers_.size(), why);
  Record({{"event", "move_given_up"}, {"step", version_}, {"reason", why}});
  waves_.follow = false;
  waves_.reserved.Clear();
  SetWanted(std::ssize(servers_));
  scaling_.set_rollbacks(scaling_.rollbacks() + 1);
  environment_.metrics.given_up_moves.Increment();
  scaling_.set_refusal(why);
  if (settled_at_ <= waves_.began) {  // nobody has come or gone since
    settled_at_ = absl::InfiniteFuture();
  }
  MakeBackups(kBetweenTriesOfBackups);
  SetBytesLeft(0);
  if (move_.has_value()) {
    move_.reset();
    Retire(std::move(move_control_));
  }
  ReleaseJoiners();
  GiveUpDepartures(why);
}

// Of the map that counts.
const MapForms& JobRun::Forms() {
  if (known_maps_.forms.generation != job_.shard_map.generation) {
    known_maps_.forms = FormsOf(job_.shard_map, servers_.size());
  }
  return known_maps_.forms;
}

// All servers have begun by the map: workers that join anew hear of it.
void JobRun::OnMapTold() {
  if (told_generation_ == job_.shard_map.generation) {
    return;
  }
  told_generation_ = job_.shard_map.generation;
  if (scaling_.waves_size() > 0 && waves_.began != absl::Time()) {
    proto::Wave& wave = *scaling_.mutable_waves()->rbegin();
    wave.set_pause_seconds(absl::ToDoubleSeconds(environment_.clock.Now() -
                                                 std::exchange(waves_.began, absl::Time())));
    environment_.metrics.move_pause.Observe(wave.pause_seconds());
    const absl::Duration moved = environment_.clock.Now() - waves_.reserved_at;
    waves_.pace = plan::AfterWave(waves_.pace, wave.bytes(), absl::ToDoubleSeconds(moved));
  }
  Change();
}

}  // namespace shoal::server

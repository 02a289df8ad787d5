// Servers that are to go while a job trains: between two steps others get what they hold, and the
// job lets go of them. One that was told to leave, and whose partitions nobody can take, waits for
// a checkpoint instead, from which the job goes on once it is replaced; one that goes by wish
// stays.
//
// With cluster.elastic those that come become part by themselves: joins and departures that follow
// each other soon are one move.
#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "server/coordinator/job/job_run.h"

namespace shoal::server {
namespace {

constexpr absl::Duration kTakenTogether = absl::Seconds(2);

}  // namespace

void JobRun::OfferServers(std::vector<Member> spares) {
  const bool same = AreSame(spares, spare_servers_);
  spare_servers_ = std::move(spares);
  if (!same) {
    Settle();
  }
  LoadAhead();
}

void JobRun::Settle() { settled_at_ = environment_.clock.Now() + kTakenTogether; }

// While it waits for workers no later step would begin with a move. What was given up waits for
// others to come or go.
bool JobRun::IsSettled() const {
  return !IsElastic() || (phase_ == Phase::kShort ? settled_at_ != absl::InfiniteFuture()
                                                  : environment_.clock.Now() >= settled_at_);
}

std::set<uint64_t> JobRun::Leaving() const {
  std::set<uint64_t> leaving;
  for (const auto& [incarnation, departure] : departures_) {
    leaving.insert(incarnation);
  }
  return leaving;
}

// How many it has after the next move. Who is to go does not wait for all that are wanted.
int64_t JobRun::ServersToBe(size_t leaving, int64_t wish) const {
  const int64_t there =
      std::ssize(servers_) - static_cast<int64_t>(leaving) + std::ssize(spare_servers_);
  if (IsElastic()) {
    return std::min(there, std::ssize(job_.pushes.partitions));
  }
  if (wish <= there) {
    return wish;
  }
  return leaving == 0 ? std::ssize(servers_) : there;
}

// Whether others can have what these hold.
absl::Status JobRun::CheckDepartures(const std::set<uint64_t>& leaving, int64_t wish) const {
  if (leaving.empty()) {
    return absl::OkStatus();
  }
  SHOAL_RETURN_IF_ERROR(CheckTrains());
  const int64_t servers = ServersToBe(leaving.size(), wish);
  if (const int64_t least = job_.job.cluster.min_servers; servers < least) {
    return FailedPrecondition("{} would have {} servers, and cluster.min_servers is {}", job_.id,
                              servers, least);
  }
  return CheckFits(leaving, servers);
}

void JobRun::OnLeaving(const Member& member, const std::string& why) {
  if (closed() || !TakesPart(member.incarnation)) {
    return;
  }
  if (member.role != proto::ROLE_SERVER) {
    Lose(member, why, /*asked=*/true);
    return;
  }
  std::set<uint64_t> leaving = Leaving();
  leaving.insert(member.incarnation);
  // While servers are asked where they are, nobody knows; then it is decided before the next step.
  absl::Status can = absl::OkStatus();
  if (phase_ != Phase::kTakingOver || stop_requested_) {
    can = CheckDepartures(leaving, job_.servers);
  }
  if (can.ok()) {
    Depart(member, why);
    return;
  }
  LogInfo("what {} holds stays where it is: {}", NameOf(member), Message(can));
  Lose(member, why, /*asked=*/true);
}

absl::Status JobRun::CheckDrain(const Member& server) const {
  std::set<uint64_t> leaving = Leaving();
  leaving.insert(server.incarnation);
  return CheckDepartures(leaving, OneFewer());
}

// Where it has as few as it may, a spare takes the place of one that goes.
int64_t JobRun::OneFewer() const {
  return std::max(job_.job.cluster.min_servers, job_.servers - 1);
}

proto::ScaleReply JobRun::Drain(const Member& server) {
  departures_[server.incarnation].drained = true;
  Wish(OneFewer(), /*rate=*/0);
  SetBytesLeft(DescribeWish(job_.servers).bytes_moved());
  Depart(server, "shoal drain");
  return DescribeScaling();
}

void JobRun::Depart(const Member& server, const std::string& why) {
  LogInfo("{} is to go ({}): what it holds moves to others", NameOf(server), why);
  Record({{"event", "draining"}, {"step", step_}, {"member", NameOf(server)}, {"reason", why}});
  departures_[server.incarnation] = {.why = why, .drained = server.drained};
  Settle();
  if (phase_ == Phase::kShort) {
    OpenStep();
  }
}

// Called while nothing else of the job is under way.
void JobRun::GiveUpDepartures(const std::string& why) {
  for (const auto& [incarnation, departure] : std::exchange(departures_, {})) {
    const auto server = std::ranges::find(servers_, incarnation, &Member::incarnation);
    if (departure.drained) {
      kept_.push_back(*server);
    } else {
      Lose(*server,
           fmt::format("{}, and no other server takes what it holds: {}", departure.why, why),
           /*asked=*/true);
    }
  }
}

}  // namespace shoal::server

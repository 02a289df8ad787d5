#include "tests/simulation/invariants.h"

#include <algorithm>
#include <set>

#include "core/base/status.h"
#include "core/job/shard_map_message.h"
#include "core/plan/placement/placement.h"
#include "server/coordinator/job/partition_move.h"

namespace shoal::simulation {
namespace {

// Incarnations of those that have state of a partition.
std::set<uint64_t> HoldersOf(const proto::SavedRun& run, const plan::ShardMap& map, int partition) {
  std::set<uint64_t> holders;
  for (const int server : map.servers[static_cast<size_t>(partition)]) {
    holders.insert(run.servers(server).incarnation());
  }
  return holders;
}

bool AreServersOf(const proto::SavedRun& run, const proto::JoinJobReply& join) {
  return std::ranges::equal(run.servers(), join.servers(),
                            [](const proto::SavedMember& saved, const proto::ServerAddress& told) {
                              return saved.incarnation() == told.incarnation() &&
                                     saved.registered().address() == told.address();
                            });
}

plan::ShardMap MapOf(const proto::SavedRun& run) {
  return plan::MapFromBytes(run.shard_map(), run.generation());
}

// The map with where a worker is to read.
plan::ShardMap MapFor(const proto::SavedRun& run, const plan::ShardMap& map, uint64_t incarnation,
                      const proto::JoinJobReply& join) {
  const auto worker =
      std::ranges::find(run.workers(), incarnation, &proto::SavedMember::incarnation);
  if (!join.job().service().read_replicas() || worker == run.workers().end()) {
    return plan::FromMessage(join.shard_map());
  }
  std::vector<std::string> hosts;
  for (const proto::SavedMember& server : run.servers()) {
    hosts.push_back(server.registered().host());
  }
  return plan::WithReaders(map, hosts, worker->registered().host(), worker->index());
}

// A map whose readers are all primaries may come without.
bool ReadAlike(const plan::ShardMap& a, const plan::ShardMap& b) {
  for (int id = 0; id < static_cast<int>(std::min(a.servers.size(), b.servers.size())); ++id) {
    if (a.reader(id) != b.reader(id)) {
      return false;
    }
  }
  return true;
}

int64_t MovedBytes(const std::vector<plan::PartitionSpec>& partitions,
                   const proto::SavedRun& before, const proto::SavedRun& after) {
  const plan::ShardMap from = MapOf(before);
  const plan::ShardMap to = MapOf(after);
  int64_t bytes = 0;
  for (const plan::PartitionSpec& partition : partitions) {
    const std::set<uint64_t> had = HoldersOf(before, from, partition.id);
    for (const uint64_t holder : HoldersOf(after, to, partition.id)) {
      bytes += had.contains(holder) ? 0 : partition.moved_bytes();
    }
  }
  return bytes;
}

}  // namespace

const SimHostedJob* Invariants::FindHosted(const std::string& job_id) const {
  for (int index = 0; index < servers_.count(); ++index) {
    const SimHostedJob* const hosted = servers_.server(index).hosted();
    if (hosted != nullptr && hosted->request().job_id() == job_id) {
      return hosted;
    }
  }
  return nullptr;
}

void Invariants::OnJoined(const std::string& worker, uint64_t incarnation,
                          const proto::JoinJobReply& join) {
  const auto found = runs_.find(join.job_id());
  if (found == runs_.end() || found->second.run() != join.run() ||
      found->second.generation() != join.shard_map().generation()) {
    return;  // there is another by now
  }
  const proto::SavedRun& run = found->second;
  const auto differs = [&](const char* what) {
    context_.Violation(fmt::format("I24: {} joins {} by {} than those of generation {}", worker,
                                   join.job_id(), what, join.shard_map().generation()));
  };
  const plan::ShardMap told = plan::FromMessage(join.shard_map());
  const plan::ShardMap map = MapOf(run);
  if (told.servers != map.servers) {
    differs("other holders");
  }
  if (!AreServersOf(run, join)) {
    differs("other servers");
  }
  if (!ReadAlike(told, MapFor(run, map, incarnation, join))) {
    differs("other readers");
  }
}

void Invariants::OnRunSaved(const std::string& job_id, const proto::SavedRun& run) {
  const proto::SavedRun before = std::exchange(runs_[job_id], run);
  const SimHostedJob* const hosted = FindHosted(job_id);
  if (run.servers_size() == 0 || before.servers_size() == 0 || before.run() != run.run() ||
      before.generation() == run.generation() || hosted == nullptr) {
    return;
  }
  const std::vector<plan::PartitionSpec>& partitions = hosted->job.model().partitions();
  owed_ += static_cast<double>(MovedBytes(partitions, before, run));
  const double imbalance =
      server::Imbalance(partitions, MapOf(run), plan::FirstServers(run.servers_size()));
  const bool settled = run.settled() && !context_.cancelled;
  if (settled && hosted->job.description().service.replicas == 1 && imbalance > 1) {
    context_.Violation(
        fmt::format("I12: no wave is to follow of {}, and servers differ by {:.2f} partitions",
                    job_id, imbalance));
  }
}

void Invariants::OnStarted(int64_t term, double moved) {
  term_ = term;
  told_ = moved;
  owed_ = 0;  // it ended before it could tell
}

void Invariants::CheckMoved(double moved) {
  if (const double told = moved - std::exchange(told_, moved); told != std::exchange(owed_, 0)) {
    context_.Violation(
        fmt::format("I11: {} bytes are told to have moved that are not those of the map", told));
  }
}

void Invariants::OnBegun(int index) {
  const SimHostedJob& hosted = *servers_.server(index).hosted();
  std::set<int> of_extents;
  for (const server::JobStore* const store : {hosted.store.get(), hosted.backups.get()}) {
    for (const auto& extent : store->extents()) {
      if (extent->store->options().publishes()) {
        of_extents.insert(extent->region);
      }
    }
    const auto is_empty = [](const auto& extent) {
      return !extent->store->partitions().empty() &&
             std::ranges::all_of(extent->store->partitions(),
                                 [](const auto& partition) { return partition == nullptr; });
    };
    if (store->arriving() != nullptr || std::ranges::any_of(store->extents(), is_empty)) {
      context_.Violation(fmt::format(
          "I13: server {} begins an attempt with memory for what it does not hold", index));
    }
  }
  if (hosted.regions() != of_extents.size()) {
    context_.Violation(fmt::format("I13: server {} has {} regions of weights for extents in {}",
                                   index, hosted.regions(), of_extents.size()));
  }
}

void Invariants::OnRecorded(const std::string& job_id, const server::CommitRecord& record,
                            double moved) {
  CheckMoved(moved);
  context_.Note("record", static_cast<uint64_t>(record.step), [&] {
    return fmt::format("step {} attempt {} of {}", record.step, record.attempt, job_id);
  });
  History& history = histories_[job_id];
  const bool went_back = configured_ != history.configured && record.step <= history.recorded;
  // A record that was lost before any server had heard of it is written again (I2 sees to that).
  const bool again = context_.tail_lost && record.step == history.recorded;
  if (record.step != history.recorded + 1 && !went_back && !again && history.recorded != 0) {
    context_.Violation(fmt::format("I1: step {} of {} is recorded after step {}", record.step,
                                   job_id, history.recorded));
  }
  if (const auto stopped = stopped_.find(job_id); stopped != stopped_.end() &&
                                                  stopped->second.term == term_ &&
                                                  ++stopped->second.recorded > 1) {
    context_.Violation(
        fmt::format("I20: step {} of {} is recorded, which was stopped", record.step, job_id));
  }
  const bool first = went_back || history.recorded == 0;
  history = {record.step, configured_};
  int64_t run = 0;  // the newest; a server that was lost may have an earlier one still
  for (int index = 0; index < servers_.count(); ++index) {
    const SimHostedJob* hosted = servers_.server(index).hosted();
    if (hosted != nullptr && hosted->request().job_id() == job_id) {
      run = std::max(run, hosted->request().run());
    }
  }
  std::set<int> written;
  for (int index = 0; index < servers_.count(); ++index) {
    const SimHostedJob* hosted = servers_.server(index).hosted();
    if (hosted == nullptr || hosted->request().job_id() != job_id) {
      continue;  // lost since it answered
    }
    const server::StepState state = hosted->core->state();
    if (hosted->request().run() != run || state.generation() != record.generation ||
        hosted->store->held().empty()) {
      continue;  // its partitions are elsewhere by now, or it was to get some and did not
    }
    for (const auto& held : hosted->store->held()) {
      if (!written.insert(held.partition->spec().id).second) {
        context_.Violation(
            fmt::format("I4: partition {} of {} is written by two servers in step {}",
                        held.partition->spec().id, job_id, record.step));
      }
    }
    const bool sealed = state.phase() == server::Phase::kSealed &&
                        state.IsCurrentAttempt(record.step, record.attempt);
    if (!sealed || state.version() != record.step - 1) {
      context_.Violation(fmt::format(
          "I2: step {} attempt {} of {} is recorded, and server {} has version {}, {}", record.step,
          record.attempt, job_id, index, state.version(), state.Describe()));
    }
    if (went_back && !context_.tail_lost && !hosted->job.description().RestoresOnServerLoss()) {
      context_.Violation(fmt::format(
          "I21: step {} of {} is recorded again, which is to fail where a server is lost",
          record.step, job_id));
    }
    if (first) {
      CheckRestored(hosted->job, record.step - 1);
    }
    if (sealed) {
      CheckSums(*hosted, index, record.step);
    }
  }
}

// The sums of squares are exact.
void Invariants::CheckSums(const SimHostedJob& hosted, int index, int64_t step) {
  const SimModel& model = hosted.job.model();
  const std::vector<float> gradient = hosted.job.GradientOf(step);
  const proto::PrepareReply& sealed = hosted.prepared;
  for (int i = 0; i < sealed.partitions_size(); ++i) {
    const auto& partition = model.partitions()[static_cast<size_t>(sealed.partitions(i))];
    if (sealed.sums_of_squares(i) != model.SumOfSquares(gradient, partition)) {
      context_.Violation(fmt::format(
          "I3: step {} of {} is recorded, and server {} has another sum in partition {} "
          "than that of each sample once",
          step, hosted.request().job_id(), index, sealed.partitions(i)));
    }
  }
}

void Invariants::OnRecordedBeside(const std::string& job_id, const server::CommitRecord& record) {
  context_.Note("record", static_cast<uint64_t>(record.step), [&] {
    return fmt::format("step {} attempt {} of {}, by an earlier coordinator", record.step,
                       record.attempt, job_id);
  });
  History& history = histories_[job_id];
  history.recorded = std::max(history.recorded, record.step);
}

void Invariants::CheckRestored(SimJob& job, int64_t version) {
  const auto& complete = job.disk().complete;
  const int64_t newest = complete.empty() ? 0 : complete.rbegin()->first;
  // One that the earlier of two completes while the later one begins is passed over.
  if (version != newest && !(context_.has_successor && version < newest)) {
    context_.Violation(
        fmt::format("I5: a run begins at version {}, and the newest complete checkpoint is of {}",
                    version, newest));
  }
}

void Invariants::CheckBits(int index, const char* when) {
  const SimHostedJob& hosted = *servers_.server(index).hosted();
  const int64_t version = hosted.store->version();
  for (const server::JobStore* const store : {hosted.store.get(), hosted.backups.get()}) {
    const std::string what =
        DifferenceTo(*store, hosted.job.model(), hosted.job.StateAfter(version));
    if (!what.empty()) {
      context_.Violation(fmt::format(
          "I18: server {} has other bits {} version {} than a run in which nothing goes wrong: {}",
          index, when, version, what));
    }
  }
}

void Invariants::OnConfigured(int index) {
  const SimHostedJob& hosted = *servers_.server(index).hosted();
  configured_ += hosted.store->held().empty() ? 0 : 1;  // else it joins a run
  context_.Note("configured", static_cast<uint64_t>(index), [&] {
    return fmt::format("server-{} has {} at version {}", index, hosted.request().job_id(),
                       hosted.store->version());
  });
  CheckBits(index, "having loaded");
}

void Invariants::OnCommitted(int index) {
  const SimHostedJob& hosted = *servers_.server(index).hosted();
  const std::string& job_id = hosted.request().job_id();
  const int64_t version = hosted.store->version();
  context_.Note("committed", static_cast<uint64_t>(index), [&] {
    return fmt::format("server-{} has version {} of {}", index, version, job_id);
  });
  const auto recorded = histories_.find(job_id);
  if (recorded == histories_.end() || recorded->second.recorded < version) {
    context_.Violation(
        fmt::format("I2: server {} committed step {} before its record", index, version));
  }
  CheckBits(index, "having committed");
}

void Invariants::OnPushed(int index, uint64_t incarnation) {
  if (servers_.server(index).fenced().contains(incarnation)) {
    context_.Violation(
        fmt::format("I9: server {} has taken a push of incarnation {:016x}, which was fenced",
                    index, incarnation));
  }
}

void Invariants::OnObeyed(int index, int64_t term) {
  int64_t& highest = servers_.server(index).highest_term;
  if (term < highest) {
    context_.Violation(fmt::format("I8: server {} has obeyed a command of term {} after one of {}",
                                   index, term, highest));
  }
  highest = std::max(highest, term);
}

void Invariants::OnRegistered(int process, int64_t life, uint64_t incarnation) {
  const auto [given, fresh] = incarnations_.try_emplace(incarnation, process, life);
  if (!fresh && given->second != std::pair(process, life)) {
    context_.Violation(fmt::format("I9: incarnation {:016x} is given twice", incarnation));
  }
}

void Invariants::OnAnswered(int64_t term, uint64_t incarnation, const absl::Status& status) {
  if (absl::IsNotFound(status) && Message(status).starts_with("incarnation")) {
    refused_.emplace(term, incarnation);
  } else if (status.ok() && !refused_.empty() && refused_.contains({term, incarnation})) {
    context_.Violation(
        fmt::format("I9: incarnation {:016x} is listened to again after its lease", incarnation));
  }
}

}  // namespace shoal::simulation

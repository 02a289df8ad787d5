#include "tests/simulation/invariants.h"

#include <algorithm>

#include "core/base/status.h"

namespace shoal::simulation {

uint64_t Invariants::WeightsAfter(SimJob& job, int64_t step) {
  std::vector<uint64_t>& known = weights_.try_emplace(&job, 1, 0).first->second;
  while (std::ssize(known) <= step) {
    const int64_t next = std::ssize(known);
    known.push_back(NextWeights(known.back(), next, job.SamplesOf(next)));
  }
  return known[static_cast<size_t>(step)];
}

void Invariants::OnRecorded(const std::string& job_id, const server::CommitRecord& record) {
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
  history = {record.step, record.attempt, configured_};
  for (int index = 0; index < servers_.count(); ++index) {
    const FakeServer& server = servers_.server(index);
    if (!server.configured || server.job_id != job_id) {
      continue;  // lost since it answered
    }
    const bool sealed = server.state.phase() == server::Phase::kSealed &&
                        server.state.IsCurrentAttempt(record.step, record.attempt);
    if (!sealed || server.version() != record.step - 1) {
      context_.Violation(fmt::format(
          "I2: step {} attempt {} of {} is recorded, and server {} has version {}, {}", record.step,
          record.attempt, job_id, index, server.version(), server.state.Describe()));
    }
    std::vector<int64_t> samples = server.samples;
    std::ranges::sort(samples);
    SimJob* job = job_of_(server.request.job().checkpoint().directory());
    if (job != nullptr && first) {
      CheckRestored(*job, record.step - 1);
    }
    if (sealed && job != nullptr && samples != job->SamplesOf(record.step)) {
      context_.Violation(fmt::format(
          "I3: step {} of {} is recorded, and server {} has {} samples instead of each of {} once",
          record.step, job_id, index, samples.size(), job->SamplesOf(record.step).size()));
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

void Invariants::OnConfigured(int index) {
  ++configured_;
  const FakeServer& server = servers_.server(index);
  context_.Note("configured", static_cast<uint64_t>(index), [&] {
    return fmt::format("server-{} has {} at version {}", index, server.job_id, server.version());
  });
  SimJob* job = job_of_(server.request.job().checkpoint().directory());
  if (job != nullptr && server.weights != WeightsAfter(*job, server.version())) {
    context_.Violation(fmt::format("I18: server {} loaded version {} with other weights", index,
                                   server.version()));
  }
}

void Invariants::OnCommitted(int index) {
  const FakeServer& server = servers_.server(index);
  context_.Note("committed", static_cast<uint64_t>(index), [&] {
    return fmt::format("server-{} has version {} of {}", index, server.version(), server.job_id);
  });
  const auto recorded = histories_.find(server.job_id);
  if (recorded == histories_.end() || recorded->second.recorded < server.version()) {
    context_.Violation(
        fmt::format("I2: server {} committed step {} before its record", index, server.version()));
  }
  SimJob* job = job_of_(server.request.job().checkpoint().directory());
  if (job != nullptr && server.weights != WeightsAfter(*job, server.version())) {
    context_.Violation(fmt::format(
        "I18: server {} has other weights after step {} than a run in which nothing goes wrong",
        index, server.version()));
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

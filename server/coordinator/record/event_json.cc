#include "server/coordinator/record/event_json.h"

namespace shoal::server {
namespace {

// By the names that TRL has for them.
void AddPreference(const proto::PreferenceMetrics& means, Json& line) {
  line["rewards/chosen"] = means.chosen_reward();
  line["rewards/rejected"] = means.rejected_reward();
  line["rewards/accuracies"] = means.accuracy();
  line["rewards/margins"] = means.chosen_reward() - means.rejected_reward();
  line["logps/chosen"] = means.chosen_log_probability();
  line["logps/rejected"] = means.rejected_log_probability();
}

}  // namespace

Json ToJson(const proto::StepEvent& event) {
  Json line = {{"event", "step"},
               {"step", event.step()},
               {"loss", event.loss()},
               {"grad_norm", event.grad_norm()},
               {"learning_rate", event.learning_rate()},
               {"tokens", event.tokens()},
               {"target_tokens", event.target_tokens()},
               {"step_seconds", event.step_seconds()},
               {"tokens_per_second", event.tokens_per_second()},
               {"idle_share", event.idle_share()},
               {"predicted_idle_share", event.predicted_idle_share()}};
  if (event.mfu() > 0) {
    line["mfu"] = event.mfu();
  }
  if (!event.skipped().empty()) {
    line["skipped"] = event.skipped();
  }
  if (event.emulated()) {
    line["emulated"] = true;
  }
  if (event.has_preference()) {
    AddPreference(event.preference(), line);
  }
  return line;
}

Json ToJson(const proto::ValidationEvent& event) {
  Json line = {{"event", "validation"},
               {"step", event.step()},
               {"loss", event.loss()},
               {"tokens", event.tokens()},
               {"target_tokens", event.target_tokens()},
               {"seconds", event.seconds()},
               {"best_loss", event.best_loss()},
               {"best_step", event.best_step()},
               {"since_best", event.since_best()}};
  if (event.has_preference()) {
    AddPreference(event.preference(), line);
  }
  return line;
}

Json ToJson(const proto::CheckpointEvent& event) {
  Json line = {{"event", "checkpoint"}, {"step", event.step()}};
  if (!event.error().empty()) {
    line["error"] = event.error();
  } else {
    line["path"] = event.path();
    line["seconds"] = event.seconds();
  }
  return line;
}

Json ToJson(const proto::DoneEvent& event) {
  Json line = {{"event", event.interrupted() ? "interrupted" : "done"},
               {"step", event.step()},
               {"loss", event.loss()},
               {"checkpoint", event.checkpoint()}};
  if (!event.best_checkpoint().empty()) {
    line["best_checkpoint"] = event.best_checkpoint();
  }
  if (event.early()) {
    line["early"] = true;
  }
  return line;
}

Json ToJson(const proto::RestartEvent& event) {
  return {{"event", "coordinator_restarted"},
          {"step", event.step()},
          {"seconds", event.seconds()},
          {"term", event.term()}};
}

Json ToJson(const proto::FailedEvent& event) {
  return {{"event", "failed"},
          {"step", event.step()},
          {"message", event.message()},
          {"non_finite", event.non_finite()}};
}

Json ToJson(const proto::HostFacts& facts) {
  Json known = Json::object();
  const auto add = [&known](const char* key, const Json& value, bool is_known) {
    if (is_known) {
      known[key] = value;
    }
  };
  add("kernel", facts.kernel(), !facts.kernel().empty());
  add("cpu", facts.cpu(), !facts.cpu().empty());
  add("cores", facts.cores(), facts.cores() > 0);
  add("memory_bytes", facts.memory_bytes(), facts.memory_bytes() > 0);
  add("gpus", std::vector<std::string>(facts.gpus().begin(), facts.gpus().end()),
      facts.gpus_size() > 0);
  add("build", facts.build(), !facts.build().empty());
  add("instructions", facts.instructions(), !facts.instructions().empty());
  add("gpu", facts.gpu(), !facts.gpu().empty());
  return known;
}

Json MeanShares(const std::vector<proto::LastStep>& steps) {
  Json shares = Json::object();
  for (const auto& [name, share] : kTimeShares) {
    double sum = 0;
    for (const proto::LastStep& step : steps) {
      sum += (step.*share)();
    }
    shares[std::string(name)] = sum / static_cast<double>(steps.size());
  }
  return shares;
}

}  // namespace shoal::server

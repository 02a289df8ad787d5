#include "cli/run/train_report.h"

#include <cmath>

#include "fmt/format.h"
#include "server/coordinator/record/event_json.h"

namespace shoal::cli {

// Plain lines are what a person reads where there is no terminal, so they go where the data goes.
TrainReport::TrainReport(Streams& streams, bool json, Clock& clock)
    : streams_(streams),
      json_(json),
      bar_(streams.err_terminal.interactive || json ? streams.err : streams.out,
           streams.err_terminal, clock) {}

void TrainReport::OnStep(const proto::StepEvent& event) {
  if (!first_loss_.has_value() && event.skipped().empty()) {
    first_loss_ = event.loss();
  }
  tokens_ += event.tokens();
  seconds_ += event.step_seconds();
  if (json_) {
    PrintJson(streams_.out, server::ToJson(event));
    return;
  }
  if (!event.skipped().empty()) {
    bar_.Line(fmt::format("step {} is skipped: {}", event.step(), event.skipped()));
  }
  bar_.Step({.step = event.step(),
             .total_steps = event.total_steps(),
             .loss = event.loss(),
             .validation_loss = validation_loss_,
             .grad_norm = event.grad_norm(),
             .learning_rate = event.learning_rate(),
             .tokens_per_second = event.tokens_per_second(),
             .step_seconds = event.step_seconds(),
             .mfu = event.mfu()});
}

void TrainReport::OnValidation(const proto::ValidationEvent& event) {
  validation_loss_ = event.loss();
  if (json_) {
    PrintJson(streams_.out, server::ToJson(event));
    return;
  }
  const proto::PreferenceMetrics& pairs = event.preference();
  std::string text =
      fmt::format("validation after step {}: loss {:.4f} ", event.step(), event.loss());
  text += event.has_preference() ? fmt::format("(accuracy {:.3f}, margin {:.4g})", pairs.accuracy(),
                                               pairs.chosen_reward() - pairs.rejected_reward())
                                 : fmt::format("(perplexity {:.4g})", std::exp(event.loss()));
  if (event.since_best() > 0) {
    text +=
        fmt::format(", the lowest was {:.4f} after step {}", event.best_loss(), event.best_step());
  }
  bar_.Line(text);
}

void TrainReport::OnCheckpoint(const proto::CheckpointEvent& event) {
  if (!json_) {
    bar_.Line(fmt::format("checkpoint at step {} in {}: {}", event.step(),
                          FormatSeconds(event.seconds()), event.path()));
  }
}

void TrainReport::OnState(const std::string& state) {
  if (json_) {
    return;
  }
  if (state != "training") {
    bar_.Line(state);
  } else if (!first_loss_.has_value()) {
    bar_.Line("the first step is running");
  }
}

void TrainReport::OnEvent(const proto::JobEvent& event) {
  if (recorder_ != nullptr) {
    recorder_->Add(event);
  }
}

void TrainReport::OnNotice(const std::string& text) {
  bar_.Clear();
  streams_.err << text << std::endl;
}

void TrainReport::OnProgress(const std::string& what, int64_t done, int64_t total) {
  if (!json_) {
    bar_.Items(what, done, total);
  }
}

void TrainReport::PrintEnd(const RunEnd& end) {
  if (!json_) {
    return;
  }
  switch (end.kind) {
    case RunEnd::Kind::kReached:
    case RunEnd::Kind::kInterrupted: {
      proto::DoneEvent done;
      done.set_step(end.step);
      done.set_loss(end.loss);
      done.set_checkpoint(end.checkpoint);
      done.set_best_checkpoint(end.best_checkpoint);
      done.set_interrupted(end.kind == RunEnd::Kind::kInterrupted);
      done.set_early(end.early);
      PrintJson(streams_.out, server::ToJson(done));
      return;
    }
    case RunEnd::Kind::kFailed:
    case RunEnd::Kind::kNonFinite:
      PrintJson(streams_.out, {{"event", "failed"},
                               {"step", end.step},
                               {"message", end.message},
                               {"non_finite", end.kind == RunEnd::Kind::kNonFinite}});
      return;
  }
}

std::string DescribeValidation(const RunEnd& end) {
  if (!end.validation.has_value()) {
    return "";
  }
  const proto::ValidationEvent& newest = *end.validation;
  std::string text =
      fmt::format("\nvalidation loss {:.4f} after step {}, the lowest {:.4f} after step {}",
                  newest.loss(), newest.step(), newest.best_loss(), newest.best_step());
  if (end.early) {
    text += fmt::format(
        "\nended early: {} validations in a row brought no lower one (train.early_stop)",
        newest.since_best());
  }
  return text;
}

std::string WhichStep(const RunEnd& end) {
  if (end.best_checkpoint.empty() || end.best_checkpoint == end.checkpoint) {
    return "";
  }
  return fmt::format(" (of step {}, by checkpoint.best)", end.validation->best_step());
}

}  // namespace shoal::cli

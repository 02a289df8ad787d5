#include "worker/job/report_microbatch.h"

namespace shoal::worker {

void ReportMicrobatch(const plan::MicrobatchSize& size, const MicrobatchResult& result,
                      double seconds, proto::FinishedReport& report) {
  if (size.tokens > 0) {
    proto::MicrobatchTime& time = *report.add_times();
    time.set_tokens(size.tokens);
    time.set_squared_tokens(size.squared_tokens);
    time.set_seconds(seconds);
  }
  report.set_loss_sum(report.loss_sum() + result.loss_sum);
  report.set_tokens(report.tokens() + result.tokens);
  report.set_target_tokens(report.target_tokens() + result.targets);
  report.set_microbatches(report.microbatches() + 1);
}

}  // namespace shoal::worker

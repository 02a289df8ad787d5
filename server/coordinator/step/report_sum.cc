#include "server/coordinator/step/report_sum.h"

#include <algorithm>

namespace shoal::server {
namespace {

using Seconds = google::protobuf::RepeatedField<double>;

void AddTo(Seconds& sum, const Seconds& more) {
  sum.Resize(std::max(sum.size(), more.size()), 0);
  for (int i = 0; i < more.size(); ++i) {
    sum[i] += more[i];
  }
}

}  // namespace

void AddRound(const proto::FinishedReport& round, std::optional<proto::FinishedReport>& sum) {
  proto::FinishedReport& total = sum.has_value() ? *sum : sum.emplace();
  total.set_step(round.step());
  total.set_attempt(round.attempt());
  total.set_peak_flops(round.peak_flops());
  total.mutable_times()->MergeFrom(round.times());
  total.mutable_spans()->MergeFrom(round.spans());
  total.mutable_copies()->MergeFrom(round.copies());
  total.set_dropped_spans(total.dropped_spans() + round.dropped_spans());
  total.set_busy_seconds(total.busy_seconds() + round.busy_seconds());
  total.set_get_wait_seconds(total.get_wait_seconds() + round.get_wait_seconds());
  total.set_push_wait_seconds(total.push_wait_seconds() + round.push_wait_seconds());
  total.set_layer_wait_seconds(total.layer_wait_seconds() + round.layer_wait_seconds());
  total.set_transfer_wait_seconds(total.transfer_wait_seconds() + round.transfer_wait_seconds());
  AddTo(*total.mutable_neighbour_wait_seconds(), round.neighbour_wait_seconds());
  AddTo(*total.mutable_get_wait_by_server(), round.get_wait_by_server());
}

}  // namespace shoal::server

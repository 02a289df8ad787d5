#include "server/service/trace/span_log.h"

#include <utility>

namespace shoal::server {

void SpanLog::Begin(const proto::BeginAttemptRequest& request) {
  on_ = request.trace();
  absl::MutexLock lock(&mutex_);
  step_ = request.step();
  attempt_ = request.attempt();
  spans_.clear();
  dropped_ = 0;
}

void SpanLog::AddPush(int64_t step, int64_t attempt, const std::string& client, int32_t partition,
                      absl::Time start, absl::Time end) {
  if (!on_) {
    return;
  }
  proto::ServerSpan span;
  span.set_kind(proto::ServerSpan::KIND_ACCUMULATE);
  span.set_client(client);
  span.set_partition(partition);
  absl::MutexLock lock(&mutex_);
  const auto number = static_cast<int32_t>(threads_.size());
  span.set_thread(threads_.emplace(std::this_thread::get_id(), number).first->second);
  Add(step, attempt, start, end, std::move(span));
}

void SpanLog::AddCommand(int64_t step, int64_t attempt, proto::ServerSpan::Kind kind,
                         absl::Time start, absl::Time end) {
  if (!on_) {
    return;
  }
  proto::ServerSpan span;
  span.set_kind(kind);
  absl::MutexLock lock(&mutex_);
  Add(step, attempt, start, end, std::move(span));
}

void SpanLog::Add(int64_t step, int64_t attempt, absl::Time start, absl::Time end,
                  proto::ServerSpan span) {
  if (!Records(step, attempt)) {
    return;
  }
  if (spans_.size() == kMostSpans) {
    ++dropped_;
    return;
  }
  span.set_start_nanoseconds(absl::ToUnixNanos(start));
  span.set_nanoseconds(absl::ToInt64Nanoseconds(end - start));
  spans_.push_back(std::move(span));
}

void SpanLog::Fill(int64_t step, int64_t attempt, proto::CommitReply& reply) const {
  if (!on_) {
    return;
  }
  absl::MutexLock lock(&mutex_);
  if (Records(step, attempt)) {
    reply.mutable_spans()->Assign(spans_.begin(), spans_.end());
    reply.set_dropped_spans(dropped_);
  }
}

}  // namespace shoal::server

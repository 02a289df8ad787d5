#include "common/metrics.h"

#include <exception>
#include <vector>

#include "common/status.h"
#include "prometheus/exposer.h"
#include "prometheus/text_serializer.h"

namespace shoal {

Metrics::Metrics() : registry_(std::make_shared<prometheus::Registry>()) {}
Metrics::~Metrics() = default;

Metrics::Counter& Metrics::counter(const std::string& name, const std::string& help, const Labels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry_).Add(labels);
}

Metrics::Gauge& Metrics::gauge(const std::string& name, const std::string& help, const Labels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry_).Add(labels);
}

Metrics::Histogram& Metrics::latency(const std::string& name, const std::string& help, const Labels& labels) {
  static const prometheus::Histogram::BucketBoundaries kBuckets = {1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2,
                                                                   3e-2, 0.1,  0.3,  1.0,  3.0,  10.0};
  return prometheus::BuildHistogram().Name(name).Help(help).Register(*registry_).Add(labels, kBuckets);
}

absl::StatusOr<int> Metrics::Serve(int port) {
  try {
    exposer_ = std::make_unique<prometheus::Exposer>(fmt::format("0.0.0.0:{}", port), 1);
    exposer_->RegisterCollectable(registry_);
    return exposer_->GetListeningPorts().front();
  } catch (const std::exception& error) {
    return Unavailable("cannot serve metrics on port {}: {}; choose another with --metrics-port", port, error.what());
  }
}

std::string Metrics::Text() const { return prometheus::TextSerializer().Serialize(registry_->Collect()); }

}  // namespace shoal

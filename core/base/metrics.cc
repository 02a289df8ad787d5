#include "core/base/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "core/base/file.h"
#include "core/base/status.h"
#include "prometheus/exposer.h"
#include "prometheus/text_serializer.h"

namespace shoal {

absl::StatusOr<int> FreeMetricsPort(int port, const std::string& host) {
  if (port < 0 || port > 65535) {
    return InvalidArgument("cannot serve metrics on port {}: ports are from 0 to 65535", port);
  }
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<in_port_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    return InvalidArgument("cannot serve metrics on '{}': expected an IPv4 address like 127.0.0.1",
                           host);
  }
  socklen_t length = sizeof(address);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return Unavailable("cannot serve metrics on port {}: {}; choose another with --metrics-port",
                       port, std::strerror(errno));
  }
  return ntohs(address.sin_port);
}

namespace {

prometheus::Histogram& AddHistogram(prometheus::Registry& registry, const std::string& name,
                                    const std::string& help, const Metrics::Labels& labels,
                                    const prometheus::Histogram::BucketBoundaries& buckets) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels, buckets);
}

}  // namespace

Metrics::Metrics() : registry_(std::make_shared<prometheus::Registry>()) {}
Metrics::~Metrics() = default;

Metrics::Counter& Metrics::counter(const std::string& name, const std::string& help,
                                   const Labels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry_).Add(labels);
}

Metrics::Gauge& Metrics::gauge(const std::string& name, const std::string& help,
                               const Labels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry_).Add(labels);
}

Metrics::Histogram& Metrics::latency(const std::string& name, const std::string& help,
                                     const Labels& labels) {
  return AddHistogram(*registry_, name, help, labels,
                      {1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1,
                       0.2, 0.5, 1.0, 2.0, 5.0, 10.0});
}

Metrics::Histogram& Metrics::duration(const std::string& name, const std::string& help,
                                      const Labels& labels) {
  return AddHistogram(
      *registry_, name, help, labels,
      {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600});
}

void Metrics::Add(std::shared_ptr<prometheus::Collectable> others) {
  others_.push_back(std::move(others));
}

absl::StatusOr<int> Metrics::Serve(int port, const std::string& host) {
  // The web server only says that it failed, not why.
  SHOAL_RETURN_IF_ERROR(FreeMetricsPort(port, host).status());
  try {
    exposer_ = std::make_unique<prometheus::Exposer>(fmt::format("{}:{}", host, port), 1);
    exposer_->RegisterCollectable(registry_);
    for (const auto& others : others_) {
      exposer_->RegisterCollectable(others);
    }
    return exposer_->GetListeningPorts().front();
  } catch (const std::exception& error) {
    return Unavailable("cannot serve metrics on port {}: {}; choose another with --metrics-port",
                       port, error.what());
  }
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(registry_->Collect());
}

void RaiseTo(Metrics::Counter& counter, double total) {
  if (const double now = counter.Value(); total > now) {
    counter.Increment(total - now);
  }
}

}  // namespace shoal

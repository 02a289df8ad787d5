#include "core/base/metrics.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <iterator>
#include <utility>
#include <vector>

#include "CivetServer.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "prometheus/collectable.h"
#include "prometheus/text_serializer.h"

namespace shoal {
namespace {

absl::StatusOr<in_addr> Ipv4Of(const std::string& host) {
  const addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (const int failed = getaddrinfo(host.c_str(), nullptr, &hints, &found); failed != 0) {
    return InvalidArgument(
        "cannot serve metrics on '{}': {}; name an IPv4 address with --metrics-host", host,
        gai_strerror(failed));
  }
  const in_addr address = reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr;
  freeaddrinfo(found);
  return address;
}

class TextHandler final : public CivetHandler {
 public:
  TextHandler(std::string type, std::function<std::string()> text)
      : type_(std::move(type)), text_(std::move(text)) {}
  bool handleGet(CivetServer* /*server*/, mg_connection* connection) override {
    const std::string text = text_();
    mg_send_http_ok(connection, type_.c_str(), std::ssize(text));
    mg_write(connection, text.data(), text.size());
    return true;
  }

 private:
  const std::string type_;
  const std::function<std::string()> text_;
};

absl::StatusOr<int> FreePort(int port, in_addr host) {
  if (port < 0 || port > 65535) {
    return InvalidArgument("cannot serve metrics on port {}: ports are from 0 to 65535", port);
  }
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<in_port_t>(port));
  address.sin_addr = host;
  socklen_t length = sizeof(address);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return Unavailable("cannot serve metrics on port {}: {}; choose another with --metrics-port",
                       port, std::strerror(errno));
  }
  return ntohs(address.sin_port);
}

prometheus::Histogram& AddHistogram(prometheus::Registry& registry, const std::string& name,
                                    const std::string& help, const Metrics::Labels& labels,
                                    const prometheus::Histogram::BucketBoundaries& buckets) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels, buckets);
}

}  // namespace

absl::StatusOr<int> FreeMetricsPort(int port, const std::string& host) {
  SHOAL_ASSIGN_OR_RETURN(const in_addr address, Ipv4Of(host));
  return FreePort(port, address);
}

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

void Metrics::SetInfo(const std::string& name, const std::string& help, const Labels& labels) {
  auto& family = prometheus::BuildGauge().Name(name).Help(help).Register(*registry_);
  if (family.Has(labels)) {
    return;
  }
  if (Gauge* const before = std::exchange(infos_[name], &family.Add(labels)); before != nullptr) {
    family.Remove(before);
  }
  infos_[name]->Set(1);
}

void Metrics::Add(std::shared_ptr<prometheus::Collectable> others) {
  others_.push_back(std::move(others));
}

absl::StatusOr<int> Metrics::Serve(int port, const std::string& host) {
  // The web server only says that it failed, not why.
  SHOAL_ASSIGN_OR_RETURN(const in_addr address, Ipv4Of(host));
  SHOAL_RETURN_IF_ERROR(FreePort(port, address).status());
  char numeric[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &address, numeric, sizeof(numeric));
  handler_ = std::make_unique<TextHandler>("text/plain; version=0.0.4; charset=utf-8",
                                           [this] { return Text(); });
  try {
    // A peer that says nothing holds one of them up for five seconds.
    server_ = std::make_unique<CivetServer>(
        std::vector<std::string>{"listening_ports", fmt::format("{}:{}", numeric, port),
                                 "num_threads", "4", "request_timeout_ms", "5000"});
    server_->addHandler("/metrics", *handler_);
    return server_->getListeningPorts().front();
  } catch (const std::exception& error) {
    return Unavailable("cannot serve metrics on port {}: {}; choose another with --metrics-port",
                       port, error.what());
  }
}

Metrics::Page::Page(Metrics& metrics, const std::string& path, std::function<std::string()> json)
    : server_(metrics.server_.get()),
      path_(path),
      handler_(std::make_unique<TextHandler>("application/json", std::move(json))) {
  if (server_ != nullptr) {
    server_->addHandler(path_, *handler_);
  }
}

Metrics::Page::~Page() {
  if (server_ != nullptr) {
    server_->removeHandler(path_);
  }
}

std::string Metrics::Text() const {
  std::vector<prometheus::MetricFamily> families = registry_->Collect();
  for (const auto& others : others_) {
    std::ranges::move(others->Collect(), std::back_inserter(families));
  }
  return prometheus::TextSerializer().Serialize(families);
}

void RaiseTo(Metrics::Counter& counter, double total) {
  if (const double now = counter.Value(); total > now) {
    counter.Increment(total - now);
  }
}

}  // namespace shoal

// Prometheus metrics of one process. Names and units follow docs/metrics.md: prefix shoal_, base
// units (seconds, bytes, ratios 0 to 1), _total only on counters, few label values (never a step,
// tensor or sequence).
//
// A Metrics object is made in main and passed by reference; families are made once at start-up and
// kept, so the hot path is one atomic add. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

class CivetHandler;
class CivetServer;
namespace prometheus {
class Collectable;
}  // namespace prometheus

namespace shoal {

class Metrics {
 public:
  using Labels = std::map<std::string, std::string>;
  using Counter = prometheus::Counter;
  using Gauge = prometheus::Gauge;
  using Histogram = prometheus::Histogram;

  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // References stay valid as long as this object; asking twice for the same name and labels returns
  // the same one.
  Counter& counter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge& gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  // Of that name, `labels` alone are there from now on, with the value 1. For one thread.
  void SetInfo(const std::string& name, const std::string& help, const Labels& labels);
  // Buckets for latencies: 10 us to 10 s, at 1, 2 and 5.
  Histogram& latency(const std::string& name, const std::string& help, const Labels& labels = {});
  // Buckets for steps and checkpoints: 10 ms to an hour.
  Histogram& duration(const std::string& name, const std::string& help, const Labels& labels = {});

  // Serves others beside those made here. Call before Serve.
  void Add(std::shared_ptr<prometheus::Collectable> others);
  // Serves /metrics on host:port (port 0 picks a free one) until destruction; returns the port.
  absl::StatusOr<int> Serve(int port, const std::string& host);

  // Serves `json` beside /metrics, at `path`, as long as it lives; nowhere before Serve.
  class Page {
   public:
    Page(Metrics& metrics, const std::string& path, std::function<std::string()> json);
    ~Page();  // waits for who reads it
    Page(const Page&) = delete;
    Page& operator=(const Page&) = delete;

   private:
    CivetServer* const server_;
    const std::string path_;
    const std::unique_ptr<CivetHandler> handler_;
  };

  // Returns the text exposition.
  std::string Text() const;

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  std::vector<std::shared_ptr<prometheus::Collectable>> others_;
  std::map<std::string, Gauge*> infos_;    // by name
  std::unique_ptr<CivetHandler> handler_;  // outlives the server
  std::unique_ptr<CivetServer> server_;
};

// Returns the port, or for 0 a free one, if metrics can be served there now: others may take it in
// between.
absl::StatusOr<int> FreeMetricsPort(int port, const std::string& host);

// Raises a counter to a total that is kept elsewhere. The caller must be the only one that counts
// there.
void RaiseTo(Metrics::Counter& counter, double total);

}  // namespace shoal

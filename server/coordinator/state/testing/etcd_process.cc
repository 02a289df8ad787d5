#include "server/coordinator/state/testing/etcd_process.h"

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/metrics.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "server/coordinator/state/etcd_calls.h"
#include "server/coordinator/state/etcd_writer.h"

namespace shoal::server::testing {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(30);

bool Free(int port) { return FreeMetricsPort(port, "127.0.0.1").ok(); }

int FreePairOfPorts() {
  Random random(static_cast<uint64_t>(absl::ToUnixNanos(WallTime())));
  int port = 0;
  do {
    port = 20000 + static_cast<int>(random.Below(12000));
  } while (!Free(port) || !Free(port + 1));
  return port;
}

}  // namespace

EtcdProcess::EtcdProcess(std::string folder, std::string tls)
    : folder_(std::move(folder)), tls_(std::move(tls)), port_(FreePairOfPorts()) {}

rpc::Security EtcdProcess::security() const {
  return tls_.empty() ? rpc::Security() : rpc::Security::ForOthers(tls_).value();
}

std::string EtcdProcess::endpoint() const { return fmt::format("127.0.0.1:{}", port_); }

absl::Status EtcdProcess::Start(const std::vector<std::string>& more) {
  const std::string clients = (tls_.empty() ? "http://" : "https://") + endpoint();
  const std::string peers = fmt::format("http://127.0.0.1:{}", port_ + 1);
  Command command = {.name = "etcd",
                     .arguments = {"etcd", "--data-dir", folder_, "--listen-client-urls", clients,
                                   "--advertise-client-urls", clients, "--listen-peer-urls", peers,
                                   "--initial-advertise-peer-urls", peers, "--initial-cluster",
                                   "default=" + peers, "--log-level", "error"},
                     .log_file = folder_ + ".log"};
  if (!tls_.empty()) {
    for (const auto& [flag, file] : {std::pair("--cert-file", "tls.crt"),
                                     {"--key-file", "tls.key"},
                                     {"--trusted-ca-file", "ca.crt"}}) {
      command.arguments.insert(command.arguments.end(), {flag, tls_ + "/" + file});
    }
    command.arguments.emplace_back("--client-cert-auth");
  }
  command.arguments.insert(command.arguments.end(), more.begin(), more.end());
  SHOAL_ASSIGN_OR_RETURN(child_, Subprocess::Start(command));
  const absl::Time deadline = RealClock().Now() + kLimit;
  const auto etcd = Connect();
  etcdserverpb::RangeRequest ask;
  ask.set_key("any");
  absl::Status answers;
  while (RealClock().Now() < deadline && child_->Running()) {
    answers = etcd->Call(&EtcdCalls::Range, ask, kEtcdCall).status();
    if (answers.ok()) {
      return absl::OkStatus();
    }
    RealClock().SleepFor(absl::Milliseconds(20));
  }
  return Internal("etcd does not answer: {}: {}", Message(answers), TailOf(folder_ + ".log", 5));
}

std::shared_ptr<rpc::Channel> EtcdProcess::Connect() const {
  return rpc::Channel::Create(endpoint(), security(), rpc::Role::kCoordinator, "etcd");
}

void EtcdProcess::Put(const std::string& key, const std::string& value) const {
  etcdserverpb::TxnRequest request;
  *request.add_success() = EtcdPut(key, value);
  SHOAL_CHECK(Connect()->Call(&EtcdCalls::Txn, request, kEtcdCall).ok());
}

void EtcdProcess::Delete(const std::string& key) const {
  etcdserverpb::TxnRequest request;
  *request.add_success() = EtcdDelete(key);
  SHOAL_CHECK(Connect()->Call(&EtcdCalls::Txn, request, kEtcdCall).ok());
}

std::optional<etcdserverpb::KeyValue> EtcdProcess::Get(const std::string& key) const {
  etcdserverpb::RangeRequest request;
  request.set_key(key);
  const auto reply = Connect()->Call(&EtcdCalls::Range, request, kEtcdCall);
  SHOAL_CHECK(reply.ok());
  return reply->kvs().empty() ? std::nullopt : std::optional(reply->kvs(0));
}

}  // namespace shoal::server::testing

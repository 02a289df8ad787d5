// An etcd of one node on loopback, with its data in a folder of the test.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/process/subprocess.h"
#include "core/rpc/channel.h"
#include "proto/etcd.pb.h"

namespace shoal::server::testing {

class EtcdProcess {
 public:
  // Whether this machine has the program.
  static bool Exists() { return ProgramExists("etcd"); }

  // Not started yet. It keeps to its port and its data over starts. `tls`: the folder of the
  // certificate that it shows and that those who call it show; empty: plain text.
  explicit EtcdProcess(std::string folder, std::string tls = "");

  // Returns once it answers. From the main thread alone. `more`: flags.
  absl::Status Start(const std::vector<std::string>& more = {});
  // As by SIGKILL.
  void Kill() { child_.reset(); }
  void Signal(int signal) const { child_->Signal(signal); }

  // HOST:PORT
  std::string endpoint() const;
  rpc::Security security() const;
  std::shared_ptr<rpc::Channel> Connect() const;
  void Put(const std::string& key, const std::string& value) const;
  void Delete(const std::string& key) const;
  // Nullopt where there is none.
  std::optional<etcdserverpb::KeyValue> Get(const std::string& key) const;

 private:
  const std::string folder_;
  const std::string tls_;
  int port_ = 0;  // and the next, for its peers
  std::unique_ptr<Subprocess> child_;
};

}  // namespace shoal::server::testing

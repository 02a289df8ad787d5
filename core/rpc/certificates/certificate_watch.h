// Reads a process's certificates again and again, so that they can be replaced while it runs, says
// when its own ends soon, and checks those of peers against the CAs at hand. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/metrics.h"
#include "core/rpc/certificates/certificate_files.h"

namespace shoal::rpc {

class CertificateWatch {
 public:
  struct Options {
    CertificatePaths paths;
    std::string domain;
    Role role = Role::kClient;
    absl::Duration interval;
  };
  // An error as ReadCertificates says. `metrics`: outlives this, or is null.
  static absl::StatusOr<std::shared_ptr<CertificateWatch>> Start(const Options& options,
                                                                 Metrics* metrics);
  ~CertificateWatch();  // calls Stop
  CertificateWatch(const CertificateWatch&) = delete;
  CertificateWatch& operator=(const CertificateWatch&) = delete;

  const Identity& identity() const { return identity_; }
  // Who shows that certificate: one of this process's own domain and namespace, or Unauthenticated.
  absl::StatusOr<Identity> CheckPeer(std::string_view certificate, std::string_view chain,
                                     Side side) const;
  // Reads no more; peers are checked all the same. Idempotent, not concurrently.
  void Stop();

 private:
  CertificateWatch(Options options, Metrics* metrics, Certificates first);
  void Watch();
  void Look();
  // Says so once of each certificate and error.
  void Tell(const Certificates& read);
  void CountReload(const char* result, double times = 1);

  const Options options_;
  Metrics* const metrics_;
  const Identity identity_;

  mutable absl::Mutex mutex_;
  Certificates current_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Of the thread.
  std::string failure_;  // of the last look
  std::string told_;     // the last failure that was logged
  absl::Time told_end_;  // of the certificate that was said to end soon
  std::thread thread_;
};

// Whether less than a quarter of the time is left.
bool EndsSoon(absl::Time begins, absl::Time ends, absl::Time now);

}  // namespace shoal::rpc

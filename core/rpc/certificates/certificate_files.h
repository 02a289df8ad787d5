// The folder that a process has its certificates from: tls.crt (its own, and those between it and
// the CA), tls.key and ca.crt, as cert-manager names them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/rpc/certificates/certificate.h"

namespace shoal::rpc {

// Of one file.
inline constexpr int64_t kMaxPemBytes = 1 << 20;

struct CertificatePaths {
  std::string certificate;
  std::string key;
  std::string ca;
};
CertificatePaths PathsIn(const std::string& folder);
// In `folder`, or, where that has folders for all roles as `shoal tls init` makes them, in the one
// for this role.
CertificatePaths PathsOf(const std::string& folder, Role role);

struct Certificates {
  std::string certificate;  // PEM
  std::string ca;           // PEM
  std::shared_ptr<const TrustedCas> cas;
  Certified own;
};
// Reads and checks them. An error names the file: it is not there, or the certificate is not of
// that role and domain, has ended, is not of a CA in ca.crt or has another key.
absl::StatusOr<Certificates> ReadCertificates(const CertificatePaths& paths, Role role,
                                              const std::string& domain, absl::Time now);

}  // namespace shoal::rpc

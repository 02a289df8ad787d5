// Makes a CA and certificates of Shoal's roles, with keys on P-256: `shoal tls init`, and tests.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/rpc/certificates/identity.h"

namespace shoal::rpc {

struct Validity {
  absl::Time begins;
  absl::Time ends;
};

// In PEM.
struct KeyAndCertificate {
  std::string key;
  std::string certificate;
};

class CertificateMaker {
 public:
  // Makes a new CA.
  static absl::StatusOr<std::unique_ptr<CertificateMaker>> Create(const Validity& validity);
  // InvalidArgument unless these are a CA's key and certificate.
  static absl::StatusOr<std::unique_ptr<CertificateMaker>> Open(const KeyAndCertificate& ca);
  ~CertificateMaker();

  // Of the CA.
  absl::StatusOr<KeyAndCertificate> Pem() const;
  // A certificate for both sides of a connection, and its key, which is new.
  absl::StatusOr<KeyAndCertificate> Issue(const Identity& identity, const Validity& validity) const;

 private:
  struct Ca;
  explicit CertificateMaker(std::unique_ptr<Ca> ca);
  std::unique_ptr<Ca> ca_;
};

}  // namespace shoal::rpc

// Certificates (PEM), checked by OpenSSL against the CAs that this process trusts.
#pragma once

#include <openssl/types.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/rpc/certificates/identity.h"

namespace shoal::rpc {

// What a certificate that was found good says.
struct Certified {
  Identity identity;
  absl::Time begins;
  absl::Time ends;
  absl::Time ca_ends;  // of the CA that it stands on
};

// Which side of a connection shows a certificate: it must be made for that.
enum class Side { kClient, kServer };

// The CAs that a process trusts. Thread-safe.
class TrustedCas {
 public:
  // `pem`: one or more certificates. InvalidArgument if there is none.
  static absl::StatusOr<std::shared_ptr<const TrustedCas>> Parse(std::string_view pem);

  // Unauthenticated, with what is wrong in one line: there is none, it has ended or not begun, no
  // CA that is trusted has signed it, it names nobody that Shoal knows. `chain`: intermediate ones,
  // or empty.
  absl::StatusOr<Certified> Check(std::string_view certificate, std::string_view chain, Side side,
                                  absl::Time now) const;

 private:
  explicit TrustedCas(X509_STORE* store);
  const std::shared_ptr<X509_STORE> store_;
};

// InvalidArgument if `key` is not the private key of the first certificate.
absl::Status CheckKey(std::string_view certificate, std::string_view key);

}  // namespace shoal::rpc

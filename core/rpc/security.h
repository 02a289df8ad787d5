// What a process shows the peers that it calls, and asks of those that call it: the job's token,
// and with TLS a certificate.
//
// With TLS both sides show a certificate of a CA that the other trusts. It says who they are by a
// SPIFFE name (certificates/identity.h) of the same domain and namespace; host names are not looked
// at. The files are read again every ten seconds: connections stay, new ones are made with what is
// new.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/metrics.h"
#include "core/rpc/certificates/identity.h"
#include "core/rpc/refusals.h"
#include "core/rpc/token.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace shoal::rpc {

// The environment's name of the folder.
inline constexpr const char* kTlsVariable = "SHOAL_TLS";

struct TlsOptions {
  std::string folder;  // as PathsOf in certificates/certificate_files.h has it; empty: no TLS
  std::string domain = kDefaultDomain;        // of all certificates
  absl::Duration reload = absl::Seconds(10);  // whole seconds
};

// Copies share the certificate.
class Security {
 public:
  // Plain text.
  Security(Token token = {});  // NOLINT(google-explicit-constructor): there is nothing but it
  // With TLS where the options name a folder, of a process of role `own`. An error names the file
  // that is not good. `metrics`: outlives all copies, or is null.
  static absl::StatusOr<Security> Create(Token token, const TlsOptions& options, Role own,
                                         Metrics* metrics = nullptr);

  // For calls to what is not Shoal's (etcd), with TLS as the web has it: its certificate names the
  // host that is called and is of a CA in `folder`/ca.crt, and it is shown `folder`/tls.crt. An
  // error names the file that is not there.
  static absl::StatusOr<Security> ForOthers(const std::string& folder);

  // What calls show.
  const Token& token() const { return token_; }
  // What calls that only a coordinator makes have to show: the token, if there is no other.
  const Token& command_token() const { return command_token_.empty() ? token_ : command_token_; }
  Security WithToken(Token token) const;
  Security WithCommandToken(Token token) const;
  // Whether connections of gRPC are encrypted: only then may secrets travel in calls.
  bool encrypted() const { return tls_ != nullptr || for_others_ != nullptr; }
  Refusals& refusals() const { return *refusals_; }

  // With TLS refuses peers without a good certificate.
  std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials() const;
  // With TLS refuses peers that are not of that role.
  std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(Role peer) const;

 private:
  class Tls;
  Token token_;
  Token command_token_;
  std::shared_ptr<Refusals> refusals_;
  std::shared_ptr<const Tls> tls_;
  std::shared_ptr<grpc::ChannelCredentials> for_others_;
};

}  // namespace shoal::rpc

#include "core/rpc/security.h"

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/rpc/certificates/certificate_files.h"
#include "core/rpc/certificates/certificate_watch.h"
#include "core/rpc/grpc_support.h"

namespace shoal::rpc {
namespace {

using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::FileWatcherCertificateProvider;
using grpc::experimental::TlsCustomVerificationCheckRequest;

std::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

// Checks in gRPC's place, which would say neither what is wrong nor, of a server, who it is.
class PeerVerifier final : public ExternalCertificateVerifier {
 public:
  using Check = std::function<absl::Status(std::string_view certificate, std::string_view chain)>;
  explicit PeerVerifier(Check check) : check_(std::move(check)) {}

  bool Verify(TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/, grpc::Status* status) override {
    *status = ToGrpc(check_(View(request->peer_cert()), View(request->peer_cert_full_chain())));
    return true;  // done already
  }
  void Cancel(TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const Check check_;
};

}  // namespace

class Security::Tls {
 public:
  Tls(const CertificatePaths& paths, absl::Duration reload, std::shared_ptr<CertificateWatch> watch)
      : watch_(std::move(watch)),
        seconds_(static_cast<unsigned>(absl::ToInt64Seconds(reload))),
        for_server_(std::make_shared<FileWatcherCertificateProvider>(paths.key, paths.certificate,
                                                                     seconds_)),
        for_channels_(std::make_shared<FileWatcherCertificateProvider>(
            paths.key, paths.certificate, /*root_cert_path=*/paths.certificate, seconds_)) {}
  // gRPC keeps what checks peers for as long as it has connections.
  ~Tls() { watch_->Stop(); }
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
      const std::shared_ptr<Refusals>& refusals) const {
    grpc::experimental::TlsServerCredentialsOptions options(for_server_);
    options.watch_identity_key_cert_pairs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
    options.set_certificate_verifier(ExternalCertificateVerifier::Create<PeerVerifier>(
        [watch = watch_, refusals = std::weak_ptr(refusals)](std::string_view certificate,
                                                             std::string_view chain) {
          const absl::Status status = watch->CheckPeer(certificate, chain, Side::kClient).status();
          if (const auto counted = refusals.lock(); !status.ok() && counted != nullptr) {
            return counted->Refuse(Refusals::Reason::kIdentity, "a connection", status);
          }
          return status;
        }));
    return grpc::experimental::TlsServerCredentials(options);
  }

  std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(Role peer) const {
    grpc::experimental::TlsChannelCredentialsOptions options;
    options.set_certificate_provider(for_channels_);
    options.watch_identity_key_cert_pairs();
    // Nobody looks at roots, but without any gRPC takes the system's, and fails where it has none.
    options.watch_root_certs();
    options.set_verify_server_certs(false);
    options.set_check_call_host(false);
    options.set_certificate_verifier(ExternalCertificateVerifier::Create<PeerVerifier>(
        [watch = watch_, peer](std::string_view certificate,
                               std::string_view chain) -> absl::Status {
          SHOAL_ASSIGN_OR_RETURN(const Identity identity,
                                 watch->CheckPeer(certificate, chain, Side::kServer));
          return identity.role == peer
                     ? absl::OkStatus()
                     : Unauthenticated("{} is not a {}", UriOf(identity), RoleName(peer));
        }));
    return grpc::experimental::TlsCredentials(options);
  }

 private:
  const std::shared_ptr<CertificateWatch> watch_;
  const unsigned seconds_;
  // What reads this process's own. A channel that comes to watch roots ends what tells a server of
  // new certificates (gRPC 1.51), so each has one.
  const std::shared_ptr<FileWatcherCertificateProvider> for_server_;
  const std::shared_ptr<FileWatcherCertificateProvider> for_channels_;
};

Security::Security(Token token)
    : token_(std::move(token)), refusals_(std::make_shared<Refusals>(nullptr)) {}

absl::StatusOr<Security> Security::Create(Token token, const TlsOptions& options, Role own,
                                          Metrics* metrics) {
  Security security(std::move(token));
  security.refusals_ = std::make_shared<Refusals>(metrics);
  if (!options.folder.empty()) {
    const CertificatePaths paths = PathsOf(options.folder, own);
    auto watch = CertificateWatch::Start(
        {.paths = paths, .domain = options.domain, .role = own, .interval = options.reload},
        metrics);
    if (!watch.ok()) {
      return Annotate(watch.status(), "--tls");
    }
    security.tls_ = std::make_shared<const Tls>(paths, options.reload, *std::move(watch));
  }
  return security;
}

absl::StatusOr<Security> Security::ForOthers(const std::string& folder) {
  const CertificatePaths paths = PathsIn(folder);
  for (const std::string& file : {paths.ca, paths.certificate, paths.key}) {
    SHOAL_RETURN_IF_ERROR(ReadFile(file, kMaxPemBytes).status());
  }
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<FileWatcherCertificateProvider>(
      paths.key, paths.certificate, paths.ca,
      static_cast<unsigned>(absl::ToInt64Seconds(TlsOptions().reload))));
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  Security security;
  security.for_others_ = grpc::experimental::TlsCredentials(options);
  return security;
}

Security Security::WithToken(Token token) const {
  Security other = *this;
  other.token_ = std::move(token);
  return other;
}

Security Security::WithCommandToken(Token token) const {
  Security other = *this;
  other.command_token_ = std::move(token);
  return other;
}

std::shared_ptr<grpc::ServerCredentials> Security::MakeServerCredentials() const {
  return tls_ != nullptr ? tls_->MakeServerCredentials(refusals_)
                         : grpc::InsecureServerCredentials();
}

std::shared_ptr<grpc::ChannelCredentials> Security::MakeChannelCredentials(Role peer) const {
  return for_others_ != nullptr ? for_others_
         : tls_ != nullptr      ? tls_->MakeChannelCredentials(peer)
                                : grpc::InsecureChannelCredentials();
}

}  // namespace shoal::rpc

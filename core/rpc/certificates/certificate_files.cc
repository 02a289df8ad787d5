#include "core/rpc/certificates/certificate_files.h"

#include <filesystem>

#include "core/base/file.h"
#include "core/base/status.h"

namespace shoal::rpc {
namespace {

// What is wrong with a file of this process's own is its user's mistake.
absl::Status Wrong(const std::string& path, const absl::Status& why) {
  return InvalidArgument("{}: {}", path, Message(why));
}

absl::Status CheckWhose(const Identity& own, Role role, const std::string& domain) {
  if (own.role != role) {
    return InvalidArgument("it is a {}'s certificate, not a {}'s", RoleName(own.role),
                           RoleName(role));
  }
  if (own.domain != domain) {
    return InvalidArgument("its domain is {}, not {} (--tls-domain)", own.domain, domain);
  }
  return absl::OkStatus();
}

}  // namespace

CertificatePaths PathsIn(const std::string& folder) {
  return {.certificate = folder + "/tls.crt", .key = folder + "/tls.key", .ca = folder + "/ca.crt"};
}

CertificatePaths PathsOf(const std::string& folder, Role role) {
  std::error_code error;
  const std::string own = fmt::format("{}/{}", folder, RoleName(role));
  return PathsIn(std::filesystem::is_directory(own, error) ? own : folder);
}

absl::StatusOr<Certificates> ReadCertificates(const CertificatePaths& paths, Role role,
                                              const std::string& domain, absl::Time now) {
  Certificates read;
  SHOAL_ASSIGN_OR_RETURN(read.certificate, ReadFile(paths.certificate, kMaxPemBytes));
  SHOAL_ASSIGN_OR_RETURN(const std::string key, ReadFile(paths.key, kMaxPemBytes));
  SHOAL_ASSIGN_OR_RETURN(read.ca, ReadFile(paths.ca, kMaxPemBytes));
  auto cas = TrustedCas::Parse(read.ca);
  if (!cas.ok()) {
    return Wrong(paths.ca, cas.status());
  }
  read.cas = *std::move(cas);
  for (const Side side : {Side::kClient, Side::kServer}) {  // it must do for both
    const auto own = read.cas->Check(read.certificate, read.certificate, side, now);
    if (!own.ok()) {
      return Wrong(paths.certificate, own.status());
    }
    read.own = *own;
  }
  if (const absl::Status whose = CheckWhose(read.own.identity, role, domain); !whose.ok()) {
    return Wrong(paths.certificate, whose);
  }
  if (const absl::Status fits = CheckKey(read.certificate, key); !fits.ok()) {
    return Wrong(paths.key, fits);
  }
  return read;
}

}  // namespace shoal::rpc

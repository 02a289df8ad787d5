#include "core/rpc/certificates/certificate_folder.h"

#include <filesystem>

#include "core/base/file.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/rpc/certificates/certificate_files.h"
#include "core/rpc/certificates/secret_file.h"

namespace shoal::rpc {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::unique_ptr<CertificateMaker>> CaOf(const CertificateFolderOptions& options) {
  if (options.ca_from.empty()) {
    return CertificateMaker::Create(options.ca);
  }
  KeyAndCertificate ca;
  SHOAL_ASSIGN_OR_RETURN(ca.key, ReadFile(options.ca_from + "/ca.key", kMaxPemBytes));
  SHOAL_ASSIGN_OR_RETURN(ca.certificate, ReadFile(options.ca_from + "/ca.crt", kMaxPemBytes));
  auto opened = CertificateMaker::Open(ca);
  if (!opened.ok()) {
    return Annotate(opened.status(), options.ca_from + "/ca.key, ca.crt");
  }
  return opened;
}

absl::Status Write(const CertificateFolderOptions& options, const CertificateMaker& maker,
                   const std::string& folder) {
  SHOAL_ASSIGN_OR_RETURN(const KeyAndCertificate ca, maker.Pem());
  SHOAL_RETURN_IF_ERROR(CreateDirectories(folder));
  SHOAL_RETURN_IF_ERROR(WriteSecretFile(folder + "/ca.key", ca.key));
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(folder + "/ca.crt", ca.certificate));
  for (const Role role : kRoles) {
    SHOAL_ASSIGN_OR_RETURN(const KeyAndCertificate own,
                           maker.Issue({options.domain, options.name_space, role}, options.roles));
    SHOAL_RETURN_IF_ERROR(
        WriteRoleFolder(fmt::format("{}/{}", folder, RoleName(role)), own, ca.certificate));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteRoleFolder(const std::string& folder, const KeyAndCertificate& own,
                             const std::string& ca) {
  SHOAL_RETURN_IF_ERROR(CreateDirectories(folder));
  SHOAL_RETURN_IF_ERROR(WriteSecretFile(folder + "/tls.key", own.key));
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(folder + "/tls.crt", own.certificate));
  return WriteFileAtomically(folder + "/ca.crt", ca);
}

absl::Status MakeCertificateFolder(const CertificateFolderOptions& wanted) {
  CertificateFolderOptions options = wanted;
  while (options.folder.size() > 1 && options.folder.ends_with('/')) {
    options.folder.pop_back();  // what is unfinished stands beside it
  }
  const Identity any = {options.domain, options.name_space, Role::kClient};
  SHOAL_RETURN_IF_ERROR(ParseIdentity(UriOf(any)).status());
  std::error_code error;
  if (fs::exists(fs::symlink_status(options.folder, error))) {
    return AlreadyExists("{} is there already, and nothing of it is replaced", options.folder);
  }
  SHOAL_ASSIGN_OR_RETURN(const auto maker, CaOf(options));
  const std::string unfinished =
      fmt::format("{}.{}.tmp", options.folder, SecureToken().substr(0, 8));
  absl::Status status = Write(options, *maker, unfinished);
  if (status.ok()) {
    fs::rename(unfinished, options.folder, error);
    if (error) {
      status = ErrnoToStatus(error.value(), "cannot create folder " + options.folder);
    }
  }
  if (!status.ok()) {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);
  }
  return status;
}

}  // namespace shoal::rpc

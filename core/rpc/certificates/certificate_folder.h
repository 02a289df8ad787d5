// The folder of `shoal tls init`: a CA, and for each role a folder that its programs take with
// --tls (certificate_files.h).
//
//   FOLDER/ca.crt, ca.key                           the CA; ca.key stays where it was made
//   FOLDER/server/tls.crt, tls.key, ca.crt          likewise coordinator, worker, client
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/rpc/certificates/certificate_maker.h"

namespace shoal::rpc {

struct CertificateFolderOptions {
  std::string folder;   // must not be there
  std::string ca_from;  // another such folder, whose CA signs; empty: a new CA does
  std::string domain = kDefaultDomain;
  std::string name_space = "default";
  Validity ca;
  Validity roles;
};
// Writes all or nothing; keys are for their owner alone. AlreadyExists where the folder is there.
absl::Status MakeCertificateFolder(const CertificateFolderOptions& options);

// Writes the three files of a role; `ca`: PEM, of all CAs to be trusted.
absl::Status WriteRoleFolder(const std::string& folder, const KeyAndCertificate& own,
                             const std::string& ca);

}  // namespace shoal::rpc

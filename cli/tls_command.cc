// `shoal tls init`: a CA and certificates of all roles, where nothing else makes them.
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "cli/run/command.h"
#include "core/base/clock.h"
#include "core/base/flag_checks.h"
#include "core/base/status.h"
#include "core/rpc/certificates/certificate_folder.h"

namespace shoal::cli {
namespace {

constexpr absl::Duration kDay = absl::Hours(24);
// For clocks of other machines that are behind.
constexpr absl::Duration kBehind = absl::Hours(1);
constexpr int kCaDays = 3650;

struct TlsInitOptions {
  rpc::CertificateFolderOptions certificates;
  int days = 90;
};

absl::StatusOr<ExitCode> RunTlsInit(const TlsInitOptions& options, Streams& streams) {
  rpc::CertificateFolderOptions certificates = options.certificates;
  const absl::Time now = WallTime();
  certificates.ca = {now - kBehind, now + kCaDays * kDay};
  certificates.roles = {now - kBehind, now + options.days * kDay};
  SHOAL_RETURN_IF_ERROR(rpc::MakeCertificateFolder(certificates));
  streams.out << fmt::format(
      "{}: {} and certificates of coordinator, server, worker and client in {} of {}, until {}\n",
      certificates.folder,
      certificates.ca_from.empty() ? "a new CA" : "the CA of " + certificates.ca_from,
      certificates.name_space, certificates.domain,
      absl::FormatTime("%Y-%m-%d", certificates.roles.ends, absl::UTCTimeZone()));
  return ExitCode::kDone;
}

}  // namespace

void AddTls(CLI::App& app, CommandAction& action) {
  CLI::App* tls = AddCommand(app, "tls", "Certificates for --tls", "shoal tls init certificates");
  tls->require_subcommand(1);
  auto options = std::make_shared<TlsInitOptions>();
  CLI::App* command = AddCommand(
      *tls, "init", "Make a CA, and a certificate of it for each role",
      "shoal tls init certificates\n"
      "  shoal tls init certificates-2 --ca certificates        (new ones of the same CA)");
  rpc::CertificateFolderOptions& certificates = options->certificates;
  command->add_option("folder", certificates.folder, "Folder to make; it must not be there")
      ->required();
  command->add_option("--ca", certificates.ca_from,
                      "Folder of an earlier `shoal tls init`, whose CA signs (default: a new CA)");
  command
      ->add_option("--namespace", certificates.name_space,
                   "Processes of one namespace take each other's calls")
      ->capture_default_str();
  command->add_option("--domain", certificates.domain, "As --tls-domain of the programs")
      ->capture_default_str();
  command->add_option("--days", options->days, "How long the certificates of roles are good")
      ->capture_default_str()
      ->check(CLI::Range(1, kCaDays));
  command->callback([options, &action] {
    action = [options](Streams& streams) { return RunTlsInit(*options, streams); };
  });
}

}  // namespace shoal::cli

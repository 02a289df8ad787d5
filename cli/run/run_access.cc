#include "cli/run/run_access.h"

#include <unistd.h>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/rpc/certificates/secret_file.h"

namespace shoal::cli {
namespace {

constexpr int64_t kMaximumAddressFile = 512;

}  // namespace

std::string LogFolderOf(const std::string& checkpoint_directory) {
  return checkpoint_directory + "/logs";
}
std::string AddressFileIn(const std::string& log_folder) {
  return log_folder + "/coordinator.address";
}
std::string TokenFileIn(const std::string& log_folder) { return log_folder + "/coordinator.token"; }

absl::StatusOr<std::unique_ptr<RunAccess>> RunAccess::Publish(const std::string& log_folder,
                                                              const std::string& address,
                                                              const rpc::Token& token) {
  std::unique_ptr<RunAccess> access(new RunAccess(log_folder));
  // The address last: who finds it finds the token that goes with it.
  SHOAL_RETURN_IF_ERROR(WriteSecretFile(TokenFileIn(log_folder), token.secret() + "\n"));
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(AddressFileIn(log_folder), address + "\n"));
  return access;
}

RunAccess::~RunAccess() {
  unlink(AddressFileIn(log_folder_).c_str());
  unlink(TokenFileIn(log_folder_).c_str());
}

absl::StatusOr<std::string> FindRun(const std::string& checkpoint_directory) {
  const std::string path = AddressFileIn(LogFolderOf(checkpoint_directory));
  auto text = ReadFile(path, kMaximumAddressFile);
  if (absl::IsNotFound(text.status())) {
    return NotFound(
        "no shoal train runs a local cluster with checkpoints in {} (there is no {}); for a "
        "cluster "
        "started otherwise give --coordinator HOST:PORT and --token-file",
        checkpoint_directory, path);
  }
  SHOAL_RETURN_IF_ERROR(text.status());
  const std::string address = text->substr(0, text->find('\n'));
  if (address.empty()) {
    return DataLoss("{} holds no address", path);
  }
  return address;
}

}  // namespace shoal::cli
